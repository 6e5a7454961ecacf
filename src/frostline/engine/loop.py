"""The engine's two loops, side by side. Both schedule, launch, collect and update; they differ in the order.

The work in flight is a value between these. Knows requests and the device side's two calls; nothing of tensors, text or
who asked.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import count
from typing import Any

from frostline.engine.batch import Batch
from frostline.engine.request import Request
from frostline.engine.scheduler import Scheduler
from frostline.engine.stats import EngineStats
from frostline.runner.spans import Watch, unwatched
from frostline.speculative.step import Executor, StepResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Launched:
    """A step that the device has and whose result nobody has read: under overlap, what passes from tick to tick."""

    number: int
    batch: Batch
    flight: Any


class Loop(ABC):
    """What both loops share: the four parts of a tick, each under `watch`, and the queue's ends.

    A subclass is its `_turn`: the order of the parts.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, *, watch: Watch = unwatched) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._watch = watch
        self._numbers = count()

    @abstractmethod
    def _turn(self) -> list[Request]:
        """One turn; the requests that ended in it."""

    def tick(self) -> list[Request]:
        """One turn; the requests that ended in it. Once nothing is left, rows and pages are checked."""
        with self._watch("tick"):
            finished = self._turn()
            if self.is_idle:
                self.check()
            return finished

    def _schedule(self) -> Batch | None:
        with self._watch("schedule"):
            return self._scheduler.schedule()

    def _launch(self, batch: Batch) -> _Launched:
        number = next(self._numbers)
        with self._watch("launch", step=number):
            return _Launched(number=number, batch=batch, flight=self._executor.launch(batch.step))

    def _collect(self, launched: _Launched) -> StepResult:
        with self._watch("collect", step=launched.number):
            return self._executor.collect(launched.flight)

    def _update(self, launched: _Launched, result: StepResult) -> list[Request]:
        with self._watch("update", step=launched.number):
            return self._scheduler.update(launched.batch, result)

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

    def stats(self) -> EngineStats:
        """What this loop's steps have come to so far; those in flight are not in it."""
        return self._scheduler.counters.freeze()

    def add(self, request: Request) -> None:
        self._scheduler.add(request)

    def abort(self, request_id: str) -> Request | None:
        return self._scheduler.abort(request_id)

    def check(self) -> None:
        """Integrity of rows and pages, at any time between ticks."""
        self._scheduler.check()

    def abort_all(self) -> list[Request]:
        """Every request that is not over, ended; what a caller does when it cannot go on.

        Work in flight is awaited. Where the device side fails at that, what it would have brought is given up, and the
        failure is logged: whatever made the caller stop is the better known one.
        """
        ids = [request.request_id for request in self._scheduler.unfinished()]
        ended = [request for request in map(self._scheduler.abort, ids) if request is not None]
        try:
            self._settle()
        except Exception:  # noqa: BLE001 (whatever a device side raises)
            _log.exception("a step in flight failed while its requests were aborted")
        self._scheduler.forget_in_flight()
        return ended

    @abstractmethod
    def _settle(self) -> None:
        """Read what is in flight between ticks."""


class SyncLoop(Loop):
    """One step at a time: each result is read before the next step is scheduled. The oracle of the other loop."""

    def _turn(self) -> list[Request]:
        batch = self._schedule()
        if batch is None:
            return []
        launched = self._launch(batch)
        result = self._collect(launched)
        return self._update(launched, result)

    def _settle(self) -> None:
        """Nothing is, unless a tick failed between its calls."""


class OverlapLoop(Loop):
    """One step ahead: step n + 1 is launched before the result of step n is read, so the device need not wait.

    The scheduler therefore plans from what the host knew one step ago, and a request that ended in step n is still in
    step n + 1. That run comes late and is ignored; what the request held is given to others once it has been read.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, *, watch: Watch = unwatched) -> None:
        super().__init__(executor, scheduler, watch=watch)
        self._in_flight: _Launched | None = None

    def _turn(self) -> list[Request]:
        batch = self._schedule()
        launched = None if batch is None else self._launch(batch)
        before, self._in_flight = self._in_flight, launched
        if before is None:
            return []
        result = self._collect(before)
        return self._update(before, result)

    @property
    def is_idle(self) -> bool:
        return self._in_flight is None and super().is_idle

    def _settle(self) -> None:
        before, self._in_flight = self._in_flight, None
        if before is not None:
            self._update(before, self._collect(before))
