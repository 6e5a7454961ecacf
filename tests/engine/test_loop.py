"""The synchronous loop: what a tick holds, plans, chunked prefill, NaN, abort."""

from __future__ import annotations

import pytest

from frostline.config import SpeculativeConfig
from frostline.engine.planner import Planner
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.errors import ConfigError
from frostline.types import SamplingParams
from tests.engine.fake_executor import FakeExecutor, hashed, scripted
from tests.engine.harness import PROMPT, engine_on, run
from tests.text.byte_level import byte_ids

A, B = byte_ids("ab")
GREEDY = {"temperature": 0.0, "max_tokens": 9}


def request(**params: object) -> Request:
    return engine_on(FakeExecutor(scripted([A], 3))).request(PROMPT, SamplingParams(**params))  # type: ignore[arg-type]


def test_prefill_and_iterations_share_a_step() -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: 0)
    engine = engine_on(device, budget=4)
    first, second = (engine.request([A] * n, SamplingParams(max_tokens=6)) for n in (3, 9))
    run(engine, [first, second])
    assert [[(c.row, c.start, len(c.tokens), c.last) for c in step.prefill] for step in device.steps[:4]] == [
        [(1, 0, 3, True), (2, 0, 1, False)],
        [(2, 1, 4, False)],
        [(2, 5, 4, True)],
        [],
    ]
    assert [step.rows for step in device.steps[:4]] == [(), (1,), (1,), (1, 2)]


def test_reported_03_the_first_iteration_comes_after_the_seed() -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: 1)
    engine = engine_on(device)
    output = run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=5))])[0]
    assert [(len(step.prefill), len(step.rows)) for step in device.steps] == [(1, 0), (0, 1), (0, 1)]
    assert output.stats.run_lengths == (2, 2)


def test_one_iteration_per_request_and_tick() -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: most)
    engine = engine_on(device)
    outputs = run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=n, seed=n)) for n in (4, 11, 30)])
    for row, output in enumerate(outputs, start=1):
        assert output.stats.iterations == sum(row in step.rows for step in device.steps)


def test_kv_bound_covers_every_row() -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: 0)
    engine = engine_on(device)
    run(engine, [engine.request([A] * n, SamplingParams(max_tokens=2)) for n in (3, 20)])
    assert device.steps[1].kv_bound == 20 + 5


def test_the_plan_is_the_maximum_and_the_union() -> None:
    planner = Planner(speculative=SpeculativeConfig(num_steps=4), offset=DraftOffset("P-1"))
    plain, shallow, deep = request(num_steps=0, **GREEDY), request(num_steps=2, **GREEDY), request(top_k=5)
    plan = planner.plan([plain])
    assert (plan.num_steps, plan.topk, plan.verify_width, plan.sampled, plan.filtered) == (0, 1, 1, False, False)
    plan = planner.plan([plain, shallow])
    assert (plan.num_steps, plan.verify_width, plan.sampled, plan.draft_offset) == (2, 3, False, -1)
    plan = planner.plan([plain, deep])
    assert (plan.num_steps, plan.verify_width, plan.sampled, plan.filtered) == (4, 5, True, True)
    plan = planner.plan([plain], prefilling=[deep])
    assert (plan.num_steps, plan.sampled, plan.filtered) == (0, True, True)
    assert not planner.plan([request(top_k=5, **GREEDY)]).filtered, "greedy rows are not filtered"


@pytest.mark.parametrize(("depth", "width"), [(1, 4), (2, 8), (3, 8), (4, 8)])
def test_a_shallower_tree_is_no_wider_than_it_can_be(depth: int, width: int) -> None:
    config = SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=8, draft_sampling="argmax")
    plan = Planner(speculative=config, offset=DraftOffset("P")).plan([request(num_steps=depth)])
    assert (plan.num_steps, plan.topk, plan.verify_width, plan.coupled) == (depth, 3, width, False)


@pytest.mark.parametrize(
    ("rows", "topk", "steps", "width"),
    [(32, 3, 4, 28), (100, 3, 4, 20), (600, 3, 2, 3), (400, 1, 4, 5), (700, 1, 1, 2), (1500, 1, 0, 1), (3000, 3, 0, 1)],
)
def test_a_large_batch_stays_under_the_bound_on_nodes(rows: int, topk: int, steps: int, width: int) -> None:
    """2,048 nodes at a time: the tree gets narrower first, then the drafts shorter."""
    planner = Planner(
        speculative=SpeculativeConfig(num_steps=4, topk=topk, num_draft_tokens=28 if topk > 1 else None),
        offset=DraftOffset("P"),
    )
    plan = planner.plan([request()] * rows)
    assert (plan.num_steps, plan.verify_width) == (steps, width)
    assert plan.verify_width * rows <= 2048 or plan.verify_width == 1


@pytest.mark.parametrize("position", [3, 6])
def test_nan_fails_one_request_and_no_other(position: int) -> None:
    tokens = hashed([A, B])
    broken = FakeExecutor(tokens, accept=lambda most: 1, nan=frozenset({(7, position)}))
    whole = FakeExecutor(tokens, accept=lambda most: 1)
    params = [SamplingParams(max_tokens=12, seed=seed) for seed in (6, 7, 8)]
    engines = [engine_on(broken), engine_on(whole)]
    got, expected = ([o.outputs[0] for o in run(e, [e.request(PROMPT, p) for p in params])] for e in engines)
    assert (got[0], got[2]) == (expected[0], expected[2])
    assert got[1].finish_reason == "error"
    assert "NaN" in str(got[1].stop_reason) and "dtype='float32'" in str(got[1].stop_reason)
    assert got[1].token_ids == expected[1].token_ids[: len(got[1].token_ids)]
    assert len(got[1].token_ids) <= position - len(PROMPT)


def test_nan_in_the_middle_of_a_prompt_fails_at_its_chunk() -> None:
    device = FakeExecutor(hashed([A, B]), nan=frozenset({(7, 2)}))
    engine = engine_on(device, budget=4)
    output = run(engine, [engine.request([A] * 12, SamplingParams(seed=7))])[0]
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("error", ())
    assert len(device.steps) == 1


def test_the_largest_top_k_holds_only_if_every_row_is_bounded() -> None:
    planner = Planner(speculative=SpeculativeConfig(), offset=DraftOffset("P"))
    bounded, wider, free, by_mass = request(top_k=5), request(top_k=9, top_p=0.9), request(), request(top_p=0.9)
    greedy = request(top_k=50, **GREEDY)
    assert planner.plan([bounded, wider, greedy]).max_top_k == 9
    assert planner.plan([bounded, free]).max_top_k == 5
    assert planner.plan([bounded, by_mass]).max_top_k == 0
    assert planner.plan([free, greedy]).max_top_k == 0


@pytest.mark.parametrize("better", [0, -1])
def test_auto_draft_position_measures_and_keeps_the_better(better: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="frostline")
    device = FakeExecutor(hashed([A, B]), max_context=1000, num_pages={"sliding": 2999, "full": 2999}, num_rows=9)
    device.accept = lambda most: most if device.steps[-1].plan.draft_offset == better else 1
    engine = engine_on(device, offset=DraftOffset("auto"))
    run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=300)) for _ in range(8)])
    used = [step.plan.draft_offset for step in device.steps if step.rows]
    assert set(used[:2]) == {0, -1}
    assert set(used[-10:]) == {better}
    rates = "P 1.000, P-1 0.250" if better == 0 else "P 0.250, P-1 1.000"
    assert [record.message for record in caplog.records if "keeping" in record.message] == [
        f"draft_position auto: keeping {'P' if better == 0 else 'P-1'}; acceptance {rates}"
    ]
    other = engine.variant(speculative=SpeculativeConfig(num_steps=2))
    run(other, [other.request(PROMPT, SamplingParams(max_tokens=9))])
    assert {step.plan.draft_offset for step in device.steps[-2:]} == {better}, "settled once for the pair"


def test_abort_wherever_a_request_is() -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: 1, num_rows=3)
    engine = engine_on(device, budget=4)
    running, prefilling, waiting = (engine.request([A] * n, SamplingParams(max_tokens=20)) for n in (3, 9, 3))
    for one in (running, prefilling, waiting):
        engine.loop.add(one)
    engine.loop.tick()
    engine.loop.tick()
    for one, tokens in ((running, 3), (prefilling, 0), (waiting, 0)):
        assert engine.loop.abort(one.request_id) is one
        assert engine.loop.abort(one.request_id) is None
        completion = one.output().outputs[0]
        assert (completion.finish_reason, len(completion.token_ids)) == ("abort", tokens)
        engine.loop.check()
    assert engine.loop.is_idle and engine.loop.tick() == []


def test_a_failing_device_leaves_nothing_behind() -> None:
    class Failing(FakeExecutor):
        def collect(self, flight: object) -> object:  # type: ignore[override]
            if len(self.steps) == 3:
                raise KeyboardInterrupt
            return flight

    device = Failing(hashed([A, B]), accept=lambda most: 0)
    engine = engine_on(device)
    with pytest.raises(KeyboardInterrupt):
        run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=9)) for _ in range(3)])
    engine.loop.check()
    assert engine.loop.is_idle
    assert len(run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=9))])[0].outputs[0].token_ids) == 9


def test_engines_on_one_device_draft_differently_and_agree() -> None:
    device = FakeExecutor(hashed([A, B]))
    deep = engine_on(device)
    params = SamplingParams(max_tokens=9, seed=3)
    outputs = []
    for engine in (deep, *(deep.variant(speculative=SpeculativeConfig(num_steps=steps)) for steps in (0, 2))):
        device.steps.clear()
        outputs.append(run(engine, [engine.request(PROMPT, params)])[0])
        assert {step.plan.num_steps for step in device.steps[1:]} == {engine.speculative.num_steps}
    assert len({output.outputs for output in outputs}) == 1
    assert [output.stats.iterations for output in outputs] == [2, 8, 3]
    with pytest.raises(ConfigError, match=r"6 draft tokens .* over the 5 .* load it with the widest"):
        deep.variant(speculative=SpeculativeConfig(num_steps=5))
