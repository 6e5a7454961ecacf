"""What a request takes over from others that began alike, and what it must not."""

from __future__ import annotations

from typing import Any

import pytest

from frostline.config import Schedule
from frostline.engine.engine import Engine
from frostline.speculative.step import PrefillChunk, Step
from frostline.types import GROUPS, SamplingParams
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.engine.harness import engine_on, run
from tests.text.byte_level import byte_ids

A, B, C = byte_ids("abc")
SCHEDULES: tuple[Schedule, ...] = ("sync", "overlap")
ONE = SamplingParams(max_tokens=1, seed=1)


def device(**options: Any) -> FakeExecutor:
    return FakeExecutor(hashed([A, B]), **{"page_size": 4, "accept": lambda most: most // 2, **options})


def chunks(device: FakeExecutor, steps: list[Step] | None = None) -> list[PrefillChunk]:
    return [chunk for step in (device.steps if steps is None else steps) for chunk in step.prefill]


def prefilled(engine: Engine, device: FakeExecutor, prompt: list[int], params: SamplingParams = ONE) -> tuple[int, int]:
    """Runs the prompt: (rows found, rows computed)."""
    before = len(device.steps)
    run(engine, [engine.request(prompt, params)])
    own = chunks(device, device.steps[before:])
    return own[0].start, sum(len(chunk.tokens) for chunk in own)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (32, 28), (33, 32)])
def test_reported_42_at_least_one_token_is_recomputed(schedule: Schedule, length: int, found: int) -> None:
    fake = device()
    engine = engine_on(Lagging(fake), schedule=schedule)
    prompt = [A, B, A] * 11
    assert prefilled(engine, fake, prompt[:length]) == (0, length)
    assert prefilled(engine, fake, prompt[:length]) == (found, length - found)
    assert engine.stats().cached_prompt_tokens == found
    assert engine.stats().prefill_tokens == 2 * length - found


def test_a_longer_window_or_a_shorter_one_is_found_with_its_last_pages() -> None:
    for window in (1, 5, 9, 99):
        fake = device(window=window, num_pages={"sliding": 99, "full": 99})
        engine = engine_on(fake)
        prompt = [A, B, C] * 10
        assert prefilled(engine, fake, prompt) == (0, 30)
        assert prefilled(engine, fake, [*prompt, A]) == (28, 3)
        first = next(write for write in fake.steps[-1].tables if write.group == "sliding")
        # Row 28 sees the rows above 28 - W.
        assert first.pages.count(0) == max(0, 28 - window + 1) // 4


def test_a_turn_goes_on_after_the_answer_of_the_last_one() -> None:
    fake = device()
    engine = engine_on(fake)
    prompt = [A, B, C]
    output = run(engine, [engine.request(prompt, SamplingParams(max_tokens=20, ignore_eos=True, seed=5))])[0]
    told = [*prompt, *output.outputs[0].token_ids]
    # The last token was never written: 22 rows, 5 full pages.
    assert prefilled(engine, fake, [*told, C, C]) == (20, 5)
    assert prefilled(engine, fake, [*told[:13], C, C]) == (12, 3)


def test_salts_share_nothing_and_none_is_a_salt_too() -> None:
    fake = device()
    engine = engine_on(fake)
    prompt = [A, B, C] * 5
    for salt in (None, "", "x", "y"):
        params = SamplingParams(max_tokens=1, seed=1, cache_salt=salt)
        assert prefilled(engine, fake, prompt, params) == (0, 15)
        assert prefilled(engine, fake, prompt, params) == (12, 3)


def test_nothing_is_kept_when_the_cache_is_off() -> None:
    fake = device()
    engine = engine_on(fake, prefix_cache=False)
    assert [prefilled(engine, fake, [A] * 15) for _ in range(2)] == [(0, 15)] * 2
    pages = engine._admission.pages
    assert all(pages.allocators[group].num_free == pages.allocators[group].total for group in GROUPS)


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_whole_and_left_for_others() -> None:
    fake = device()
    engine = engine_on(fake)
    scored = SamplingParams(max_tokens=1, seed=1, prompt_logprobs=1)
    assert prefilled(engine, fake, [A] * 15) == (0, 15)
    assert prefilled(engine, fake, [A] * 15, scored) == (0, 15)
    assert prefilled(engine, fake, [B] * 15, scored) == (0, 15)
    assert prefilled(engine, fake, [B] * 15) == (12, 3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_prompt_in_flight_is_shared_from_the_next_step_on(schedule: Schedule) -> None:
    """The pages are written by a step that was launched before; the same step's would not be there yet."""
    fake = device(num_rows=9)
    engine = engine_on(Lagging(fake), schedule=schedule)
    prompt = [A, B, C] * 6
    for count in (2, 1):
        for request in [engine.request(prompt, SamplingParams(max_tokens=9, seed=1)) for _ in range(count)]:
            engine.loop.add(request)
        engine.loop.tick()
    while not engine.loop.is_idle:
        engine.loop.tick()
    assert [(chunk.start, len(chunk.tokens)) for chunk in chunks(fake)] == [(0, 18), (0, 18), (16, 2)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_resumed_request_finds_its_own_pages(schedule: Schedule) -> None:
    small = device(num_pages={"sliding": 99, "full": 13}, accept=lambda most: 0)
    engine = engine_on(Lagging(small), schedule=schedule)
    requests = [
        engine.request([A, B, C], SamplingParams(max_tokens=30, ignore_eos=True, seed=seed)) for seed in range(3)
    ]
    run(engine, requests)
    resumed = [chunk for chunk in chunks(small) if chunk.bonus is not None]
    assert len(resumed) == engine.stats().preemptions > 0
    assert any(chunk.start > 0 for chunk in resumed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("position", [9, 14])
def test_what_is_not_finite_is_not_found(schedule: Schedule, position: int) -> None:
    """Row 9 of a prompt that is prefilled in chunks of 6, or the first tokens after it: 14 rows, 3 full pages."""
    fake = device(nan=frozenset((7, at) for at in range(position, 60)))
    engine = engine_on(Lagging(fake), schedule=schedule, budget=6)
    prompt = [A, B, C, A, C, C, B] * 2
    failing = engine.request(prompt, SamplingParams(max_tokens=9, seed=7))
    assert run(engine, [failing])[0].outputs[0].finish_reason == "error"
    # Rows of chunks that came back before are fine: whole pages of the first 6, or of the first 12.
    assert prefilled(engine, fake, prompt)[0] == {9: 4, 14: 12}[position]


def test_cached_pages_are_given_out_when_no_free_ones_are_left_and_the_oldest_go_first() -> None:
    fake = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(fake)
    prompts = [[token] * 17 for token in (A, B, C)]
    for prompt in prompts:
        assert prefilled(engine, fake, prompt)[0] == 0
    assert prefilled(engine, fake, prompts[2])[0] == 16
    assert prefilled(engine, fake, prompts[0])[0] < 16
    engine.loop.check()


def test_what_is_shared_counts_as_fitting() -> None:
    """8 pages; a request of 17 tokens needs 7 of them, and a second one 7 again, of which 4 are there."""
    fake = device(num_pages={"sliding": 99, "full": 12}, accept=lambda most: 0)
    for cached, together in ((True, 2), (False, 1)):
        engine = engine_on(fake, prefix_cache=cached)
        fake.steps.clear()
        requests = [engine.request([A] * 17, SamplingParams(max_tokens=4, ignore_eos=True, seed=n)) for n in range(2)]
        run(engine, requests)
        assert max(len(step.rows) for step in fake.steps) == together
