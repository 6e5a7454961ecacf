"""Pages run short: who gives way, who waits, and how a request goes on that lost its pages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from frostline.config import Schedule
from frostline.engine.engine import Engine
from frostline.engine.request import Request
from frostline.engine.reservation import Reservations
from frostline.engine.stay import Stay
from frostline.types import GROUPS, SamplingParams
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.engine.harness import PROMPT, engine_on, run
from tests.text.byte_level import byte_ids

A, B = byte_ids("ab")
SCHEDULES: tuple[Schedule, ...] = ("sync", "overlap")


def device(**options: Any) -> FakeExecutor:
    """One token a run, and the widest drafts: 5 nodes, so that a request may need 10 rows beyond what it knows."""
    return FakeExecutor(hashed([A, B]), accept=lambda most: 0, **{"page_size": 4, "num_rows": 9, **options})


def long_requests(engine: Engine, count: int, tokens: int = 30) -> list[Request]:
    return [
        engine.request(PROMPT, SamplingParams(max_tokens=tokens, ignore_eos=True, seed=seed)) for seed in range(count)
    ]


def alone(count: int, tokens: int = 30) -> list[tuple[int, ...]]:
    roomy = engine_on(device(num_pages={"sliding": 400, "full": 400}))
    return [output.outputs[0].token_ids for output in run(roomy, long_requests(roomy, count, tokens))]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_newest_gives_way_and_goes_on_where_it_was(schedule: Schedule) -> None:
    # 43 rows at most for one request, and 12 pages of 4: three begin, one ends alone.
    small = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(Lagging(small), schedule=schedule, prefix_cache=False)
    requests = long_requests(engine, 4)
    outputs = run(engine, requests)
    assert [output.outputs[0].token_ids for output in outputs] == alone(4)
    assert engine.stats().preemptions >= 2
    admitted = [init.seed for step in small.steps for init in step.inits]
    assert admitted[:3] == [0, 1, 2] and Counter(admitted)[0] == 1, "the oldest is never preempted"
    assert admitted[3:] == sorted(admitted[3:]), "whoever comes again comes before everyone newer"
    resumed = [chunk for step in small.steps for chunk in step.prefill if chunk.bonus is not None]
    assert len(resumed) == engine.stats().preemptions
    told = {tuple(PROMPT) + tokens for tokens in alone(4)}
    for chunk in resumed:
        known = (*chunk.tokens, chunk.bonus)
        assert chunk.start == 0 and chunk.last and len(known) > len(PROMPT)
        assert any(tokens[: len(known)] == known for tokens in told)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_counters_add_up_with_preemptions(schedule: Schedule) -> None:
    small = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(Lagging(small), schedule=schedule)
    outputs = run(engine, long_requests(engine, 4))
    stats = engine.stats()
    assert stats.emitted_tokens == sum(len(output.outputs[0].token_ids) for output in outputs) == 4 * 30
    assert stats.first_tokens == 4 and stats.iterations == sum(output.stats.iterations for output in outputs)
    launched = sum(len(step.rows) for step in small.steps)
    assert stats.late_runs == launched - stats.iterations
    assert stats.prefill_tokens == sum(len(chunk.tokens) for step in small.steps for chunk in step.prefill)


def test_a_run_in_flight_of_a_preempted_request_is_discarded() -> None:
    small = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(Lagging(small), schedule="overlap")
    requests = long_requests(engine, 3)
    for request in requests:
        engine.loop.add(request)
    newest = requests[2]
    while engine.stats().preemptions == 0:
        before, stay = list(newest.output_ids), newest.stay
        late, runs = engine.stats().late_runs, newest.counter.freeze().iterations
        engine.loop.tick()
    # The step that was in flight had its row; what it brought was read in the same tick.
    assert stay is not None and stay.in_flight == 0 and newest.stay is None
    assert newest.output_ids == before and newest.counter.freeze().iterations == runs
    assert engine.stats().late_runs == late + 1
    engine.loop.check()
    engine.loop.abort_all()
    engine.loop.check()


def test_what_drains_is_awaited_before_anyone_else_gives_way() -> None:
    """In flight, the newest request's pages come one tick after it gave way; until then the older one sits out."""
    small = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(Lagging(small), schedule="overlap")
    requests = long_requests(engine, 3)
    for request in requests:
        engine.loop.add(request)
    rows: list[tuple[int, ...]] = []
    while engine.stats().preemptions == 0:
        engine.loop.tick()
        rows = [step.rows for step in small.steps]
    assert rows[-1] == (1, 2, 3), "the step in flight when pages ran short"
    assert engine._admission.draining()["full"] == 0, "read in the same tick"
    for _ in range(3):
        engine.loop.tick()
    assert [step.rows for step in small.steps[len(rows) :]][-1] == (1, 2)
    assert engine.stats().preemptions == 1
    engine.loop.abort_all()


def test_a_request_that_gave_way_waits_at_the_head_and_can_be_aborted_there() -> None:
    small = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(Lagging(small), schedule="overlap")
    requests = long_requests(engine, 5)
    for request in requests:
        engine.loop.add(request)
    while engine.stats().preemptions == 0:
        engine.loop.tick()
    assert [request.seed for request in engine.loop._scheduler.unfinished()] == [0, 1, 2, 3, 4]
    kept = len(requests[2].output_ids)
    assert kept > 0 and engine.loop.abort(requests[2].request_id) is requests[2]
    assert len(requests[2].output().outputs[0].token_ids) == kept
    while not engine.loop.is_idle:
        engine.loop.tick()
    found = [tuple(request.output_ids) for request in requests]
    assert found[:2] + found[3:] == [tokens for seed, tokens in enumerate(alone(5)) if seed != 2]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reported_03_the_first_iteration_after_a_resume_has_its_seed(schedule: Schedule) -> None:
    """The fake device side fails on a row that is iterated without its bonus token."""
    small = device(num_pages={"sliding": 99, "full": 13})
    engine = engine_on(small, schedule=schedule, budget=2)
    run(engine, long_requests(engine, 3))
    at = [number for number, step in enumerate(small.steps) if any(chunk.bonus is not None for chunk in step.prefill)]
    assert at
    for number in at:
        (row,) = [chunk.row for chunk in small.steps[number].prefill if chunk.bonus is not None]
        assert row not in small.steps[number].rows
        assert any(row in step.rows for step in small.steps[number + 1 :])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_reported_04_the_sliding_pool_fills_and_requests_run_on(schedule: Schedule, page_size: int) -> None:
    """Each request is many windows long, and the pool has the pages of two windows and the rows in flight."""
    window, few = 8, 2 * ((8 + 10 - 2) // page_size + 2)
    small = device(
        num_pages={"sliding": few + 1, "full": 999}, window=window, page_size=page_size, max_context=200, num_rows=7
    )
    engine = engine_on(Lagging(small), schedule=schedule, budget=9)
    prompts = [[A] * 40, [B] * 90, [A, B] * 60, [B] * 3, [A] * 50]
    requests = [
        engine.request(prompt, SamplingParams(max_tokens=60, ignore_eos=True, seed=seed))
        for seed, prompt in enumerate(prompts)
    ]
    outputs = run(engine, requests)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [60] * 5
    written = {
        page for step in small.steps for write in step.tables if write.group == "sliding" for page in write.pages
    }
    assert written == set(range(few + 1)), "every page was used, and entries were evicted"
    roomy = engine_on(device(num_pages={"sliding": 999, "full": 999}, window=window, max_context=200, num_rows=7))
    again = [roomy.request(request.prompt_ids, request.params) for request in requests]
    assert [output.outputs for output in run(roomy, again)] == [output.outputs for output in outputs]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_chunk_is_as_long_as_the_sliding_pool_allows(schedule: Schedule) -> None:
    """Window 8 and 10 rows for drafts: 6 pages of 4, so the first chunk of a prompt has 24 rows and the next fewer."""
    small = device(num_pages={"sliding": 7, "full": 99}, window=8, max_context=99)
    engine = engine_on(Lagging(small), schedule=schedule)
    run(engine, [engine.request([A] * 60, SamplingParams(max_tokens=3))])
    chunks = [chunk for step in small.steps for chunk in step.prefill]
    assert [chunk.start for chunk in chunks] == [0, 24, 40, 56] and chunks[-1].last
    assert engine.stats().preemptions == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reported_41_pressure_preempts_and_never_fails(schedule: Schedule) -> None:
    small = device(num_pages={"sliding": 13, "full": 13}, window=6)
    engine = engine_on(Lagging(small), schedule=schedule)
    outputs = run(engine, long_requests(engine, 9))
    assert [output.outputs[0].token_ids for output in outputs] == alone(9)
    assert engine.stats().preemptions > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reported_43_prompts_of_all_lengths_share_steps(schedule: Schedule) -> None:
    small = device(num_pages={"sliding": 199, "full": 199}, num_rows=33, max_context=64)
    engine = engine_on(Lagging(small), schedule=schedule, budget=50)
    requests = [
        engine.request([A] * n, SamplingParams(max_tokens=9, seed=n, num_steps=n % 5, ignore_eos=True))
        for n in range(1, 33)
    ]
    found = [output.outputs for output in run(engine, requests)]
    one_by_one = engine_on(device(num_pages={"sliding": 199, "full": 199}), steps=4)
    expected = [run(one_by_one, [one_by_one.request(r.prompt_ids, r.params)])[0].outputs for r in requests]
    assert found == expected
    assert any(len({len(chunk.tokens) for chunk in step.prefill}) > 3 for step in small.steps)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reported_21_eviction_ticks_once_per_chunk_and_iteration(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: Counter[int] = Counter()
    evict = Reservations.evict

    def counted(self: Reservations, stay: Stay, committed: int) -> None:
        ticks[stay.row] += 1
        evict(self, stay, committed)

    monkeypatch.setattr(Reservations, "evict", counted)
    small = device(num_pages={"sliding": 99, "full": 99}, window=5)
    engine = engine_on(Lagging(small), schedule=schedule, budget=4, prefix_cache=False)
    requests = [engine.request([A] * n, SamplingParams(max_tokens=20, seed=n, ignore_eos=True)) for n in (3, 9, 14)]
    freed: Counter[int] = Counter()
    run(engine, requests)
    for step in small.steps:
        freed.update([*step.rows, *(chunk.row for chunk in step.prefill)])
    assert ticks == freed
    gone = [write for step in small.steps for write in step.tables if write.pages[0] == 0]
    assert all(set(write.pages) == {0} and write.group == "sliding" for write in gone)
    entries = [(write.row, write.start + n) for write in gone for n in range(len(write.pages))]
    assert len(set(entries)) == len(entries), "an entry is evicted once"


def test_an_evicted_page_is_out_of_every_window_that_can_still_come() -> None:
    """W = 8, pages of 4: with P rows committed, drafting reads from P - 8 on, so page i goes at 4 (i + 1) <= P - 8."""
    pages = Reservations(num_pages={"sliding": 20, "full": 20}, page_size=4, window=8)
    stay = Stay(row=1, target=40)
    pages.grow(stay, 40)
    for committed in range(41):
        pages.evict(stay, committed)
        assert stay.evicted == max(0, committed - 8) // 4
        assert stay.num_held("sliding") == 10 - stay.evicted and stay.num_held("full") == 10
    pages.check([stay])
    pages.release(stay)
    assert all(pages.available(group) == 19 for group in GROUPS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_abort_frees_at_once_or_when_what_is_in_flight_was_read(schedule: Schedule) -> None:
    engine = engine_on(Lagging(device(num_pages={"sliding": 99, "full": 99})), schedule=schedule)
    (request,) = long_requests(engine, 1)
    engine.loop.add(request)
    for _ in range(3):
        engine.loop.tick()
    pages = engine._admission.pages
    held = pages.available("full")
    engine.loop.abort(request.request_id)
    engine.loop.check()
    assert request.row == 0
    if schedule == "sync":
        assert pages.available("full") == 98 and engine.loop.is_idle
        return
    assert pages.available("full") == held and not engine.loop.is_idle
    engine.loop.tick()
    assert pages.available("full") == 98 and engine.loop.is_idle


def test_abort_all_reads_what_is_in_flight() -> None:
    engine = engine_on(Lagging(device(num_pages={"sliding": 99, "full": 99})), schedule="overlap")
    for request in long_requests(engine, 3):
        engine.loop.add(request)
    for _ in range(3):
        engine.loop.tick()
    assert len(engine.loop.abort_all()) == 3 and engine.loop.is_idle
    engine.loop.check()
    assert all(engine._admission.pages.available(group) == 98 for group in GROUPS)
