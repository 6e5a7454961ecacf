"""The overlapped loop gives what the synchronous one and plain decoding give, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.config import EngineConfig, Schedule
from frostline.engine.loop import OverlapLoop, SyncLoop
from frostline.errors import ConfigError
from frostline.speculative.step import Executor, Step, StepResult
from frostline.speculative.worker import WorkerExecutor
from frostline.types import SamplingParams
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed, scripted
from tests.engine.harness import PROMPT, engine_on, run
from tests.engine.test_mixes import Mix, play
from tests.text.byte_level import EOS, byte_ids

A, B = byte_ids("ab")
SCHEDULES: tuple[Schedule, ...] = ("sync", "overlap")
WRAPS: tuple[Callable[[FakeExecutor], Executor], ...] = (lambda device: device, Lagging, WorkerExecutor)


def compare(seed: int) -> Mix:
    mix = Mix(seed=seed)
    expected = play(Mix(seed=seed))
    found = play(mix, schedule="overlap", wrap=WRAPS[seed % 3])
    both = expected.keys() & found.keys()
    assert {key: found[key] for key in both} == {key: expected[key] for key in both}
    return mix


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_random_mixes_overlap_as_they_run_one_by_one(seed: int) -> None:
    compare(seed)


@pytest.mark.parametrize("block", range(20))
def test_fixed_mixes_overlap_as_they_run_one_by_one(block: int) -> None:
    mixes = [compare(seed) for seed in range(10_000 + 20 * block, 10_020 + 20 * block)]
    # A tame block would prove little.
    assert sum(mix.preemptions for mix in mixes) > 5 and sum(mix.late_runs for mix in mixes) > 20
    assert sum(mix.evicted for mix in mixes) > 100 and sum(mix.cached for mix in mixes) > 100
    assert sum(mix.copied for mix in mixes) > 5


def test_the_next_step_is_launched_before_a_result_is_read() -> None:
    device, events = FakeExecutor(hashed([A, B]), accept=lambda most: 0), []

    class Watching(Lagging):
        def launch(self, step: Step) -> Step:
            events.append("launch")
            return super().launch(step)

        def collect(self, flight: Step) -> StepResult:
            events.append("collect")
            return super().collect(flight)

    engine = engine_on(Watching(device), schedule="overlap", steps=0)
    run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=4))])
    assert events == ["launch", "launch", "collect", "launch", "collect", "launch", "collect", "collect"]


@pytest.mark.parametrize(
    ("max_tokens", "accepted", "iterations"), [(1, 0, 0), (1, 4, 0), (2, 0, 1), (2, 4, 1), (3, 0, 2), (3, 4, 1)]
)
def test_nothing_is_launched_for_a_request_that_must_be_over(max_tokens: int, accepted: int, iterations: int) -> None:
    """Of three tokens the second iteration may be one too many: with nothing else to do, the first is awaited."""
    device = FakeExecutor(hashed([A, B]), accept=lambda most: min(most, accepted))
    engine = engine_on(device, schedule="overlap")
    run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=max_tokens, ignore_eos=True))])
    assert [step.rows for step in device.steps] == [(), *[(1,)] * iterations]
    assert engine.stats().late_runs == 0


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_in_a_batch_a_request_is_left_out_once_its_usual_run_would_end_it(accepted: int) -> None:
    """Row 2 goes on for long. Row 1 would be over with one more run of the length that all of its runs had."""
    device = FakeExecutor(hashed([A, B]), accept=lambda most: min(most, accepted))
    engine = engine_on(Lagging(device), schedule="overlap")
    params = [SamplingParams(max_tokens=n, ignore_eos=True, seed=n) for n in (1 + 3 * (accepted + 1), 50)]
    outputs = run(engine, [engine.request(PROMPT, one) for one in params])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [4 + 3 * accepted, 50]
    assert outputs[0].stats.iterations == 3 == sum(1 in step.rows for step in device.steps)
    assert engine.stats().late_runs == 0


def test_an_unusually_long_last_run_leaves_a_late_one_behind() -> None:
    lengths = iter([1, 1, 1, 1, 4, 4, 4, 4])
    device = FakeExecutor(hashed([A, B]), accept=lambda most: min(most, next(lengths, 0)))
    engine = engine_on(Lagging(device), schedule="overlap")
    params = [SamplingParams(max_tokens=n, ignore_eos=True, seed=n) for n in (10, 50)]
    outputs = run(engine, [engine.request(PROMPT, one) for one in params])
    assert outputs[0].stats.run_lengths == (2, 2, 5) and engine.stats().late_runs == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bookkeeping_ticks_once_per_iteration_and_request(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: most // 2)
    engine = engine_on(device, schedule=schedule)
    requests = [engine.request(PROMPT, SamplingParams(max_tokens=n, seed=n)) for n in (1, 4, 11, 30)]
    ticks = dict.fromkeys(requests, 0)
    for request in requests:
        record = request.counter.record

        def counted(*, of: Any = request, then: Any = record, **figures: int) -> None:
            ticks[of] += 1
            then(**figures)

        monkeypatch.setattr(request.counter, "record", counted)
    outputs = run(engine, requests)
    # Runs of 3: after the first token come 0, 1, 4 and 10 iterations; those after a request's end do not tick.
    assert list(ticks.values()) == [output.stats.iterations for output in outputs] == [0, 1, 4, 10]
    launched = [sum(row in step.rows for step in device.steps) for row in range(1, 5)]
    assert sum(launched) == sum(ticks.values()) + engine.stats().late_runs
    assert (engine.stats().late_runs == 0) == (schedule == "sync")


def test_a_late_run_is_ignored_and_its_row_is_reused_at_once() -> None:
    """EOS is in run 1; run 2 is on its way. The next request takes the only row and all pages one step later."""
    device = FakeExecutor(
        scripted([A, EOS, B], len(PROMPT)), accept=lambda most: 0, num_rows=2, num_pages={"sliding": 6, "full": 6}
    )
    engine = engine_on(Lagging(device), schedule="overlap")
    params = SamplingParams(max_tokens=7)
    outputs = run(engine, [engine.request(PROMPT, params) for _ in range(2)])
    assert [output.outputs[0].token_ids for output in outputs] == [(A, EOS)] * 2
    assert [output.stats.iterations for output in outputs] == [1, 1]
    assert [(len(step.inits), step.rows) for step in device.steps] == [(1, ()), (0, (1,)), (0, (1,))] * 2
    assert engine.stats().late_runs == 2


def test_abort_with_a_step_in_flight_frees_once_and_ignores_what_comes() -> None:
    device = FakeExecutor(hashed([A, B]), accept=lambda most: 1, num_rows=2)
    engine = engine_on(Lagging(device), schedule="overlap")
    first, second = (engine.request(PROMPT, SamplingParams(max_tokens=9, seed=n)) for n in (1, 2))
    for request in (first, second):
        engine.loop.add(request)
    engine.loop.tick()
    engine.loop.tick()
    assert engine.loop.abort(first.request_id) is first and engine.loop.abort(first.request_id) is None
    engine.loop.check()
    while not engine.loop.is_idle:
        engine.loop.tick()
    assert len(first.output_ids) == 1 and len(second.output_ids) == 9
    assert engine.stats().late_runs >= 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("position", [1, 3, 6])
def test_nan_pages_are_scrubbed_after_the_late_run_and_before_their_next_owner(
    schedule: Schedule, position: int
) -> None:
    device = FakeExecutor(
        hashed([A, B]),
        accept=lambda most: 1,
        nan=frozenset((7, at) for at in range(position, 99)),
        num_rows=2,
        num_pages={"sliding": 8, "full": 8},
    )
    engine = engine_on(Lagging(device), schedule=schedule, budget=2)
    outputs = run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=12, seed=seed)) for seed in (6, 7, 8, 7)])
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length", "error"]
    # The last one fails with nothing behind it: its pages are scrubbed when there is work again.
    assert sum([scrub.row for scrub in step.scrub] == [1] for step in device.steps) == 1
    run(engine.variant(speculative=engine.speculative), [engine.request(PROMPT, SamplingParams(max_tokens=2, seed=1))])
    assert sum([scrub.row for scrub in step.scrub] == [1] for step in device.steps) == 2


def test_a_failure_on_the_worker_comes_out_of_collect_and_the_engine_goes_on() -> None:
    class Failing(FakeExecutor):
        def launch(self, step: Step) -> StepResult:
            if len(self.steps) == 3:
                self.steps.append(step)
                raise RuntimeError("the device is on fire")
            return super().launch(step)

    worker = WorkerExecutor(Failing(hashed([A, B]), accept=lambda most: 0))
    engine = engine_on(worker, schedule="overlap")
    requests = [engine.request(PROMPT, SamplingParams(max_tokens=9)) for _ in range(3)]
    with pytest.raises(RuntimeError, match="on fire"):
        run(engine, requests)
    engine.loop.check()
    assert engine.loop.is_idle and all(request.is_finished for request in requests)
    assert len(run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=9))])[0].outputs[0].token_ids) == 9


def test_helper_threads_go_before_each_step_and_once_nothing_is_in_flight() -> None:
    names: list[str] = []
    worker = WorkerExecutor(
        FakeExecutor(hashed([A, B]), accept=lambda most: 0),
        release=lambda: names.append(threading.current_thread().name),
    )
    engine = engine_on(worker, schedule="overlap")
    run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=3))])
    worker.close()
    here, device = threading.current_thread().name, "frostline-device_0"
    # The prompt and two iterations; the device thread's own once it has nothing to do.
    assert names.count(here) == 3 and names[0] == here and names[-1] == device and set(names) == {here, device}


def test_the_worker_ends_with_its_executor() -> None:
    before = set(threading.enumerate())
    worker = WorkerExecutor(FakeExecutor(hashed([A, B])))
    engine = engine_on(worker, schedule="overlap")
    run(engine, [engine.request(PROMPT, SamplingParams(max_tokens=2))])
    (thread,) = set(threading.enumerate()) - before
    assert thread.name.startswith("frostline-device")
    worker.close()
    assert not thread.is_alive()


@pytest.mark.slow  # It measures time, and the tests of `make test` share their cores.
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_host_and_device_work_at_once(schedule: Schedule) -> None:
    """10 ms each: a tick takes the longer of the two under overlap, their sum without."""

    class Slow(FakeExecutor):
        def launch(self, step: Step) -> StepResult:
            time.sleep(0.010)
            return super().launch(step)

    engine = engine_on(WorkerExecutor(Slow(hashed([A, B]), accept=lambda most: 0)), schedule=schedule)
    engine.loop.add(engine.request(PROMPT, SamplingParams(max_tokens=None, ignore_eos=True)))
    engine.loop.tick()
    began = time.perf_counter()
    for _ in range(40):
        engine.loop.tick()
        time.sleep(0.010)
    mean_ms = (time.perf_counter() - began) / 40 * 1000
    print(f"{schedule}: {mean_ms:.2f} ms per tick")
    assert mean_ms < 15 if schedule == "overlap" else mean_ms > 18


def test_the_schedule_is_chosen_by_the_config() -> None:
    device = FakeExecutor(hashed([A, B]))
    assert isinstance(engine_on(device).loop, SyncLoop)
    assert isinstance(engine_on(device, schedule="overlap").loop, OverlapLoop)
    assert EngineConfig().schedule == "overlap"
    with pytest.raises(ConfigError, match="'sync' or 'overlap', got 'async'"):
        EngineConfig(schedule="async")  # type: ignore[arg-type]
