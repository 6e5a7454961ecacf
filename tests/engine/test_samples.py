"""Several samples of one prompt: it is prefilled once, and each sample is what it would be alone."""

from __future__ import annotations

from typing import Any

import pytest

from frostline.config import Schedule
from frostline.engine.engine import Engine, sample_seed
from frostline.engine.request import Request
from frostline.types import GROUPS, SamplingParams
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.engine.harness import engine_on, run
from tests.text.byte_level import byte_ids

A, B, C = byte_ids("abc")
SCHEDULES: tuple[Schedule, ...] = ("sync", "overlap")


def device(**options: Any) -> FakeExecutor:
    return FakeExecutor(hashed([A, B]), **{"page_size": 4, "num_rows": 9, "accept": lambda most: most // 2, **options})


def samples(engine: Engine, length: int, count: int = 4, **params: Any) -> list[Request]:
    prompt = ([A, B, C] * 30)[:length]
    values = {"n": count, "seed": 5, "max_tokens": 12, "ignore_eos": True} | params
    return engine.samples(prompt, SamplingParams(**values))


def computed(device: FakeExecutor) -> list[tuple[int, int]]:
    return [(chunk.start, len(chunk.tokens)) for step in device.steps for chunk in step.prefill]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 14, 17])
def test_a_prompt_is_prefilled_once_and_its_partial_page_is_copied(
    length: int, schedule: Schedule, prefix_cache: bool
) -> None:
    fake = device()
    engine = engine_on(Lagging(fake), schedule=schedule, prefix_cache=prefix_cache)
    requests = samples(engine, length)
    found = [output.outputs[0].token_ids for output in run(engine, requests)]
    assert computed(fake) == [(0, length), *[(length - 1, 1)] * 3]
    copies = [copy for step in fake.steps for copy in step.copies]
    rest = (length - 1) % 4
    assert [copy.group for copy in copies] == (list(GROUPS) * 3 if rest else [])
    assert all(copy.rows == rest for copy in copies)
    assert len({copy.destination for copy in copies if copy.group == "full"}) == len(copies) // 2
    assert engine.stats().cached_prompt_tokens == 3 * (length - 1)
    assert [request.seed for request in requests] == [sample_seed(5, index) for index in range(4)]
    for request, tokens in zip(requests, found, strict=True):
        alone = engine_on(device())
        (expected,) = run(
            alone,
            [alone.request(request.prompt_ids, SamplingParams(seed=request.seed, max_tokens=12, ignore_eos=True))],
        )
        assert tokens == expected.outputs[0].token_ids


@pytest.mark.parametrize("window", [1, 3, 7, 99])
def test_a_sample_takes_over_the_pages_of_its_window(window: int) -> None:
    fake = device(window=window)
    engine = engine_on(fake, prefix_cache=False)
    run(engine, samples(engine, 22, 2))
    second = [write for step in fake.steps for write in step.tables if write.row == 2]
    shared = {write.group: write.pages for write in second if write.start == 0}
    # Row 21 is computed, 5 full pages are shared, and in the sliding group those with rows above 21 - W.
    assert len(shared["full"]) == 5 and shared["sliding"].count(0) == min(5, max(0, 21 - window + 1) // 4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_samples_wait_for_a_prompt_that_takes_several_chunks(schedule: Schedule) -> None:
    fake = device()
    engine = engine_on(Lagging(fake), schedule=schedule, budget=5, prefix_cache=False)
    run(engine, samples(engine, 14, 3))
    assert computed(fake) == [(0, 5), (5, 5), (10, 4), (13, 1), (13, 1)]


def test_a_sample_whose_first_one_is_over_or_far_ahead_computes_what_is_gone() -> None:
    """One row: each sample runs after the one before. With the cache it finds the full pages, without it nothing."""
    for prefix_cache, start in ((True, 12), (False, 0)):
        fake = device(num_rows=2)
        engine = engine_on(fake, prefix_cache=prefix_cache)
        run(engine, samples(engine, 14, 2))
        assert computed(fake) == [(0, 14), (start, 14 - start)]
    # Two rows, and sample 0 is 20 tokens on when sample 2 gets one: its window has left the prompt behind.
    fake = device(num_rows=3, window=4, accept=lambda most: 0)
    engine = engine_on(fake, prefix_cache=False)
    requests = samples(engine, 14, 3, max_tokens=40)
    for request in requests:
        engine.loop.add(request)
    while len(requests[0].output_ids) < 20:
        engine.loop.tick()
    engine.loop.abort(requests[1].request_id)
    engine.loop.tick()
    assert len(requests[0].output_ids) < 40
    while not engine.loop.is_idle:
        engine.loop.tick()
    assert computed(fake)[0] == (0, 14) and computed(fake)[-1] == (0, 14)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_samples_go_on_when_the_first_one_is_aborted(schedule: Schedule) -> None:
    fake = device()
    engine = engine_on(Lagging(fake), schedule=schedule)
    requests = samples(engine, 14)
    for request in requests:
        engine.loop.add(request)
    for _ in range(3):
        engine.loop.tick()
    engine.loop.abort(requests[0].request_id)
    engine.loop.check()
    while not engine.loop.is_idle:
        engine.loop.tick()
        engine.loop.check()
    assert [len(request.output_ids) for request in requests[1:]] == [12] * 3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_prompt_that_fails_fails_every_sample_and_leaves_clean_pages(schedule: Schedule) -> None:
    fake = device(nan_token=C)
    engine = engine_on(Lagging(fake), schedule=schedule)
    outputs = run(engine, samples(engine, 14))
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 4
    # The fake device side fails on a page that is given out with NaN in it.
    fine = [engine.request([A] * 20, SamplingParams(seed=n, max_tokens=20, ignore_eos=True)) for n in range(8)]
    assert {output.outputs[0].finish_reason for output in run(engine, fine)} == {"length"}
