"""Reported faults of other engines, rows 22, 34 and 37: nothing accepted and nothing said, depth and load, counters."""

from __future__ import annotations

import logging
import random

import pytest

from frostline import DepthTable, SamplingParams, SpeculativeConfig
from frostline.config import EngineConfig, Schedule
from frostline.engine.alarm import WINDOW
from frostline.llm import LLM
from frostline.types import Group
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.text.byte_level import byte_ids

LETTERS = byte_ids("abcdef")
PAGES: dict[Group, int] = {"sliding": 400, "full": 400}
ALARM = "frostline.engine.alarm"
SCHEDULES: tuple[Schedule, ...] = ("sync", "overlap")


def llm_on(device: FakeExecutor, config: SpeculativeConfig, schedule: Schedule = "sync") -> LLM:
    return LLM.from_executor(Lagging(device), speculative=config, engine=EngineConfig(schedule=schedule))


def a_window(llm: LLM) -> None:
    """Requests with at least WINDOW first drafts between them if none is accepted, and half of that if all are."""
    params = [SamplingParams(max_tokens=WINDOW // 8 + 2, seed=n) for n in range(8)]
    llm.generate([[40 + n] for n in range(8)], params)


def accepting(drafts: list[int]) -> LLM:
    """drafts[0]: how many drafts are accepted of each run; it may be changed between calls."""
    device = FakeExecutor(hashed(LETTERS), accept=lambda most: min(drafts[0], most), num_rows=9, num_pages=PAGES)
    return LLM.from_executor(device, speculative=SpeculativeConfig())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == ALARM]


@pytest.mark.parametrize("accepted", [0, 1])
def test_reported_22_acceptance_near_zero_is_said_once_with_its_likely_causes(
    accepted: int, caplog: pytest.LogCaptureFixture
) -> None:
    llm = accepting([accepted])
    with caplog.at_level(logging.WARNING, logger=ALARM):
        for _ in range(4):
            a_window(llm)
    if accepted:
        assert warnings_of(caplog) == []
        return
    (message,) = warnings_of(caplog)
    assert f"0 of the last {WINDOW}" in message and "draft_position" in message and "num_steps=0" in message


def test_reported_22_a_second_spell_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    drafts = [0]
    llm = accepting(drafts)
    with caplog.at_level(logging.WARNING, logger=ALARM):
        for drafts[0] in (0, 0, 1, 1, 1, 1, 0, 0, 0):
            a_window(llm)
    assert len(warnings_of(caplog)) == 2


def test_reported_34_depth_depends_on_load() -> None:
    """Ten requests with lengths far apart: the fewer are left, the deeper the drafts, and the tokens are the same."""
    table = DepthTable.parse("1:6,3:4,5:2,8:0")
    for schedule in SCHEDULES:
        device = FakeExecutor(hashed(LETTERS), num_rows=11, max_context=200, verify_width=7)
        llm = llm_on(device, SpeculativeConfig.derive(depth_table=table), schedule)
        lengths = [8, 9, 12, 20, 30, 44, 60, 80, 110, 150]
        params = [SamplingParams(max_tokens=n, seed=n) for n in lengths]
        outputs = llm.generate([[40]] * 10, params)
        plans = [(len(step.rows), step.plan) for step in device.steps if step.rows]
        assert all(
            plan.num_steps == table.depth(rows) and plan.verify_width == plan.num_steps + 1 for rows, plan in plans
        )
        assert {plan.num_steps for _, plan in plans} == {0, 2, 4, 6}
        # What is offered to a row, and counted for it, is what the table allowed.
        assert sum(sum(output.stats.drafted_per_depth) for output in outputs) == llm.stats().drafted
        assert llm.stats().drafted <= sum(rows * plan.num_steps for rows, plan in plans)
        plain = FakeExecutor(hashed(LETTERS), num_rows=11, max_context=200, verify_width=7)
        expected = llm_on(plain, SpeculativeConfig(num_steps=0)).generate([[40]] * 10, params)
        assert [output.outputs for output in outputs] == [output.outputs for output in expected]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(20))
def test_reported_37_engine_counters_reconcile_with_a_replay_of_the_outputs(schedule: Schedule, seed: int) -> None:
    draw = random.Random(seed)
    tight = seed % 4 == 1
    few: dict[Group, int] = {"sliding": 26, "full": 18}
    device = FakeExecutor(
        hashed(LETTERS),
        accept=lambda most: draw.randint(0, most),
        nan=frozenset((n, draw.randint(1, 12)) for n in range(3)) if seed % 3 == 0 else frozenset(),
        num_rows=6 if tight else draw.randint(2, 6),
        num_pages=few if tight else None,
    )
    table = DepthTable.parse("1:4,3:1") if seed % 2 else None
    llm = llm_on(device, SpeculativeConfig(depth_table=table), schedule)
    count = 7 if tight else draw.randint(1, 9)
    params = [
        SamplingParams(
            max_tokens=draw.randint(20 if tight else 1, 25),
            seed=n,
            stop_token_ids=() if tight else tuple(draw.sample(LETTERS, draw.randint(0, 1))),
            num_steps=draw.choice((None, 0, 2)),
        )
        for n in range(count)
    ]
    outputs = llm.generate([[40] * draw.randint(1, 9) for _ in range(count)], params)
    stats, each = llm.stats(), [output.stats for output in outputs]
    tokens = [output.outputs[0].token_ids for output in outputs]
    # Every token of every request, counted again from what was given out.
    assert stats.emitted_tokens == sum(map(len, tokens))
    assert stats.first_tokens == sum(bool(ids) for ids in tokens)
    assert stats.emitted_tokens == stats.first_tokens + stats.iterations + stats.accepted - stats.cut_runs
    assert stats.iterations == sum(one.iterations for one in each)
    assert stats.emitted_tokens - stats.first_tokens == sum(sum(one.run_lengths) for one in each)
    for depth, (drafted, accepted) in enumerate(zip(stats.drafted_per_depth, stats.accepted_per_depth, strict=True)):
        assert drafted == sum(one.drafted_per_depth[depth] for one in each if depth < len(one.drafted_per_depth))
        assert accepted == sum(one.accepted_per_depth[depth] for one in each if depth < len(one.accepted_per_depth))
    # And all work that the device side was given.
    chunks = [chunk for step in device.steps for chunk in step.prefill]
    errors = [
        bool(ids) for ids, output in zip(tokens, outputs, strict=True) if output.outputs[0].finish_reason == "error"
    ]
    assert stats.steps == len(device.steps) and stats.failed_runs == len(errors)
    assert stats.prefill_tokens == sum(len(chunk.tokens) for chunk in chunks)
    assert sum(len(step.rows) for step in device.steps) == stats.iterations + stats.late_runs + sum(errors)
    assert schedule == "overlap" or stats.late_runs == 0
    # Whoever was preempted came back, and was given the token that it had.
    assert stats.preemptions == sum(len(step.inits) for step in device.steps) - count
    assert bool(stats.preemptions) == tight
    assert stats.preemptions == sum(output.num_preemptions for output in outputs)
    assert stats.cached_prompt_tokens == sum(output.num_cached_tokens for output in outputs)
    firsts = sum(chunk.last and chunk.bonus is None for chunk in chunks)
    assert firsts - stats.preemptions <= stats.first_tokens + errors.count(False) <= firsts
