"""Thousands of short requests, a fifth of them aborted wherever they are: no page, row or object is left behind.

The pools are so small that requests wait for pages, give them up to older ones, share what earlier ones computed and
evict it; windows move on while they run.
"""

from __future__ import annotations

import gc
import random
import sys
from typing import Any, get_args

import pytest

from frostline.config import Schedule
from frostline.engine.engine import Engine
from frostline.engine.request import Request
from frostline.types import SamplingParams
from tests.engine.fake_executor import FakeExecutor, Lagging, hashed
from tests.engine.harness import engine_on
from tests.text.byte_level import EOS, byte_ids

CHOICES = (*byte_ids("abcdabcdabcd"), EOS)
# Requests alive at a time; more than there are rows.
ALIVE = 12
# Memory blocks by which two measurements may differ: what is cached then is not the same. One object left behind by
# every request of the short soak would be three times as many.
SLACK = 500


class Forgetful(FakeExecutor):
    """A fake device side that does not keep the steps it ran."""

    def launch(self, step: Any) -> Any:
        self.steps.clear()
        return super().launch(step)


class Soak:
    """A fixed sequence of requests: what each asks for and at which tick of its life it is aborted, if ever."""

    def __init__(self, schedule: Schedule) -> None:
        self.rng = random.Random(21)
        runs = random.Random(22)
        device = Forgetful(
            hashed(CHOICES),
            accept=lambda most: runs.randint(0, most),
            num_rows=9,
            page_size=4,
            num_pages={"sliding": 18, "full": 22},
            window=8,
        )
        self.engine: Engine = engine_on(Lagging(device) if schedule == "overlap" else device, schedule=schedule)
        self.alive: dict[Request, int] = {}
        self.ended: dict[str, int] = {}

    def serve(self, count: int) -> None:
        """`count` more requests, from the first to the end of the last."""
        while count or self.alive:
            while count and len(self.alive) < ALIVE:
                self._arrive()
                count -= 1
            for request in [request for request, ticks in self.alive.items() if ticks == 0]:
                self.engine.loop.abort(request.request_id)
            self.engine.loop.tick()
            self._leave()
        while not self.engine.loop.is_idle:
            self.engine.loop.tick()
        self.engine.loop.check()

    def _arrive(self) -> None:
        rng = self.rng
        shared = [CHOICES[rng.randrange(2)]] * rng.choice([0, 4, 9])
        prompt = [*shared, *(rng.choice(CHOICES) for _ in range(rng.randint(1, 6)))]
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 5, 8, 13, 40]),
            seed=rng.randrange(100),
            temperature=rng.choice([0.0, 1.0]),
            ignore_eos=rng.random() < 0.3,
        )
        request = self.engine.request(prompt, params)
        self.engine.loop.add(request)
        self.alive[request] = rng.randint(0, 4) if rng.random() < 0.4 else -1

    def _leave(self) -> None:
        for request in [request for request in self.alive if request.is_finished]:
            reason = request.output().outputs[0].finish_reason
            self.ended[reason] = self.ended.get(reason, 0) + 1
            del self.alive[request]
        self.alive = {request: ticks - 1 for request, ticks in self.alive.items()}


def blocks() -> int:
    """Memory blocks that the interpreter has given out, garbage collected first."""
    gc.collect()
    return sys.getallocatedblocks()


def soak(schedule: Schedule, count: int) -> None:
    """Memory is measured at a quarter and at the end: what a request leaves behind would show count * 3 / 4 times."""
    run = Soak(schedule)
    run.serve(count // 4)
    before = blocks()
    run.serve(count - count // 4)
    after = blocks()
    assert run.engine.loop.is_idle
    assert sum(run.ended.values()) == count
    assert set(run.ended) == {"stop", "length", "abort"} and run.ended["abort"] >= count // 5
    print(f"{schedule}: {count} requests, {run.ended}, {after - before:+d} blocks")
    stats = run.engine.stats()
    assert stats.preemptions > 0 and stats.cached_prompt_tokens > count and stats.late_runs + stats.iterations > count
    assert after - before < SLACK, f"{after - before} blocks more after {count - count // 4} requests"


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_reported_21_nothing_is_left_after_a_soak(schedule: Schedule) -> None:
    soak(schedule, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_reported_21_nothing_is_left_after_a_long_soak(schedule: Schedule) -> None:
    soak(schedule, 20_000)
