"""Rows 24 and 39 of reported.md: no id from outside the vocabulary inside the engine, no KV row of another request."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from frostline.config import Schedule
from frostline.engine.request import Request
from frostline.speculative.checked import CheckedExecutor, TokenIdError
from frostline.speculative.step import Step, StepResult
from frostline.speculative.worker import WorkerExecutor
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.engine.harness import PROMPT, engine_on, run
from tests.engine.plain import plain
from tests.equality.bundled import bundle, differing
from tests.reported.test_equal_to_serial import GREEDY, prompts, serial
from tests.text.byte_level import EOS, byte_ids, byte_level

LETTERS = byte_ids("abcd")
VOCAB = byte_level().vocab_size


# ------------------------------------------------------------------------------------------------ row 24


class Leaky(FakeExecutor):
    """Its third iteration gives a placeholder in place of a token."""

    def launch(self, step: Step) -> StepResult:
        result = super().launch(step)
        if sum(bool(earlier.rows) for earlier in self.steps) != 3:
            return result
        return replace(result, runs=tuple(replace(run, tokens=(*run.tokens[:-1], -1)) for run in result.runs))


@pytest.mark.parametrize("token", [-1, VOCAB, 2**40])
def test_reported_24_a_placeholder_does_not_reach_the_device(token: int) -> None:
    """It slips in behind the checks that a user's prompt passes on arrival."""
    device = FakeExecutor(hashed(LETTERS))
    engine = engine_on(CheckedExecutor(device, vocab_size=VOCAB))
    request = engine.request(PROMPT, SamplingParams(max_tokens=4))
    request.prompt_ids = (*PROMPT[:2], token)
    with pytest.raises(
        TokenIdError, match=f"token id {token} in the prompt chunk of row 1 from 0 is outside .* {VOCAB}"
    ):
        run(engine, [request])
    assert device.steps == []


@pytest.mark.parametrize("schedule", ["sync", "overlap"])
def test_reported_24_a_placeholder_does_not_come_back(schedule: Schedule) -> None:
    engine = engine_on(
        CheckedExecutor(Leaky(hashed(LETTERS), accept=lambda most: 1), vocab_size=VOCAB), schedule=schedule
    )
    with pytest.raises(TokenIdError, match="token id -1 in the run of row 1"):
        run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=20))])
    engine.loop.check()


@pytest.mark.parametrize("schedule", ["sync", "overlap"])
@pytest.mark.parametrize("config", [SpeculativeConfig(), SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16)])
def test_reported_24_no_id_of_the_bundled_pair_leaves_the_vocabulary(config: Any, schedule: Schedule) -> None:
    """Prompts, first tokens, runs and every drafted node."""
    size = bundle().pair.target.spec.vocab_size
    llm = bundle().llm(
        config,
        wrap=lambda device: CheckedExecutor(WorkerExecutor(device), vocab_size=size),
        batch=3,
        context=512,
        schedule=schedule,
        max_prefill_tokens=64,
    )
    assert differing(llm.generate(prompts(8), GREEDY), serial(8)) == []


# ------------------------------------------------------------------------------------------------ row 39


def shared_prompts(rng: random.Random, count: int) -> list[list[int]]:
    """Few beginnings and many ends, so that pages are found, shared and evicted."""
    beginnings = [[rng.choice(LETTERS) for _ in range(13)] for _ in range(3)]
    return [
        [*rng.choice(beginnings)[: rng.randint(0, 13)], *(rng.choice(LETTERS) for _ in range(rng.randint(1, 5)))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("schedule", ["sync", "overlap"])
@pytest.mark.parametrize("seed", range(4))
def test_reported_39_no_request_reads_anothers_rows(schedule: Schedule, seed: int) -> None:
    """Every KV row of the fake device side says whose history it holds; the device asserts that on every read."""
    rng = random.Random(seed)
    runs = random.Random(seed + 100)
    device = FakeExecutor(
        hashed((*LETTERS, EOS)),
        accept=lambda most: runs.randint(0, most),
        num_rows=7,
        page_size=4,
        num_pages={"sliding": 18, "full": 22},
        window=8,
    )
    engine = engine_on(Lagging(device) if schedule == "overlap" else device, schedule=schedule)
    requests = [
        engine.request(
            prompt,
            SamplingParams(max_tokens=rng.choice([3, 9, 40]), seed=rng.randrange(9), ignore_eos=rng.random() < 0.5),
        )
        for prompt in shared_prompts(rng, 200)
    ]
    outputs = run(engine, requests)
    assert [output.outputs[0] for output in outputs] == [alone(request) for request in requests]
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.cached_prompt_tokens > 200


def alone(request: Request) -> Any:
    return plain(
        request.prompt_ids,
        request.params,
        seed=request.seed,
        next_token=hashed((*LETTERS, EOS)),
        eos=(EOS,),
        max_context=64,
        tokenizer=byte_level(),
    )


def test_reported_39_a_foreign_page_is_noticed() -> None:
    """Otherwise the test above would prove nothing."""

    class Mixing(FakeExecutor):
        """The second request's first page of the full group is the first request's."""

        def launch(self, step: Step) -> StepResult:
            first = {write.row: write.pages[0] for write in step.tables if (write.group, write.start) == ("full", 0)}
            mixed = tuple(
                replace(write, pages=(first[1], *write.pages[1:]))
                if (write.row, write.group, write.start) == (2, "full", 0)
                else write
                for write in step.tables
            )
            return super().launch(replace(step, tables=mixed))

    engine = engine_on(Mixing(hashed(LETTERS), accept=lambda most: 1))
    with pytest.raises(AssertionError, match=r"a stale or foreign full row|belongs to another request"):
        run(engine, [engine.request([token] * 3, SamplingParams(max_tokens=9)) for token in LETTERS[:2]])


@pytest.mark.parametrize("schedule", ["sync", "overlap"])
def test_reported_39_the_bundled_pair_with_shared_beginnings(schedule: Schedule) -> None:
    """A reply is the same after others have left pages with the same beginning behind, and twice at once."""
    llm = bundle().llm(
        SpeculativeConfig(), wrap=WorkerExecutor, batch=4, context=512, schedule=schedule, prefix_cache=True
    )
    again: list[RequestOutput] = []
    for _ in range(2):
        again = llm.generate([*prompts(8), *prompts(8)[::-1]], GREEDY)
        assert differing(again, [*serial(8), *serial(8)[::-1]]) == []
    assert llm.stats().cached_prompt_tokens > sum(map(len, prompts(8)))
