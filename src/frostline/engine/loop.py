"""The engine's loop. A tick is: schedule, launch, collect, update; the work in flight is a value between them.

Knows requests and the device side's two calls; nothing of tensors, text or who asked.
"""

from __future__ import annotations

from frostline.engine.request import Request
from frostline.engine.scheduler import Scheduler
from frostline.speculative.step import Executor


class SyncLoop:
    """One step at a time: each result is read before the next step is scheduled. The oracle of any other loop."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler

    def tick(self) -> list[Request]:
        """One turn; the requests that ended in it. Once nothing is left, rows and pages are checked."""
        batch = self._scheduler.schedule()
        if batch is None:
            return []
        flight = self._executor.launch(batch.step)
        result = self._executor.collect(flight)
        finished = self._scheduler.update(batch, result)
        if self._scheduler.is_idle:
            self._scheduler.check()
        return finished

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

    def add(self, request: Request) -> None:
        self._scheduler.add(request)

    def abort(self, request_id: str) -> Request | None:
        return self._scheduler.abort(request_id)

    def check(self) -> None:
        """Integrity of rows and pages, at any time between ticks."""
        self._scheduler.check()

    def abort_all(self) -> list[Request]:
        """Every request that is not over, ended; what a caller does when it cannot go on."""
        ids = [request.request_id for request in self._scheduler.unfinished()]
        return [request for request in map(self._scheduler.abort, ids) if request is not None]
