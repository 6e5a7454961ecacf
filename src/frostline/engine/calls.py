"""Who asked for what: calls that share one loop, each with the requests it waits for.

Knows which requests are open and which have ended; nothing of what they hold or say.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from frostline.engine.loop import Loop
from frostline.engine.request import Request
from frostline.errors import RequestError

# Sample 2 of request "a" is "a#2"; sample 0 is "a" itself.
SAMPLE_MARK = "#"


class Call:
    """The requests of one caller, by id: those that are open, and those that ended since it looked last."""

    def __init__(self) -> None:
        self.open: dict[str, Request] = {}
        self._ended: list[Request] = []

    def end(self, request: Request) -> None:
        del self.open[request.request_id]
        self._ended.append(request)

    def take_ended(self) -> list[Request]:
        ended, self._ended = self._ended, []
        return ended


class OneAtATime:
    """Shared by all that drive engines on one device side: one of them is at work at a time."""

    def __init__(self) -> None:
        self._user: Calls | None = None

    def claim(self, user: Calls) -> None:
        """Raises RequestError while another one's requests are open."""
        if self._user is not None and self._user is not user and not self._user.is_idle:
            raise RequestError(
                "another LLM on the same loaded pair still has requests open; finish it or close its stream first"
            )
        self._user = user


class Calls:
    """Drives a loop for any number of callers, from any thread. Whoever advances moves everybody's requests.

    A tick that raises ends every request: what was in flight is lost with it. turn: shared by engines on one device.
    """

    def __init__(self, loop: Loop, turn: OneAtATime) -> None:
        self._loop = loop
        self._turn = turn
        self._calls: dict[str, Call] = {}
        # With their calls: by the time an abort is applied, another call's request may have the id.
        self._aborts: deque[tuple[str, Call]] = deque()
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return not self._calls and self._loop.is_idle

    def open(self) -> Call:
        """A call without requests yet. Whoever opens one finishes it."""
        return Call()

    def add(self, call: Call, requests: Sequence[Request]) -> None:
        """Queue requests of a call.

        Raises RequestError, with none of them queued, for an id that is taken, or while another engine on the same
        device side is at work.
        """
        with self._lock:
            self._turn.claim(self)
            names = [request.request_id for request in requests]
            taken = [name for at, name in enumerate(names) if name in self._calls or name in names[:at]]
            if taken:
                raise RequestError(f"request id {taken[0]!r} is in use; give every request an id of its own, or none")
            for request in requests:
                self._calls[request.request_id] = call
                call.open[request.request_id] = request
                self._loop.add(request)

    def advance(self, call: Call) -> list[Request]:
        """One tick, unless another caller's ticks ended this call already; its requests that ended since last time."""
        with self._lock:
            if call.open:
                self._tick()
            return call.take_ended()

    def finish(self, call: Call) -> None:
        """Abort what the call has left. With nobody else's request open, wait for the steps in flight too."""
        with self._lock:
            self._aborts.extend((name, call) for name in call.open)
            self._apply_aborts()
            while not self._calls and not self._loop.is_idle:
                self._tick()

    def abort(self, request_id: str) -> bool:
        """End a request, all its samples, from any thread: now, or before the next step is scheduled.

        False if it is not open.
        """
        # The list is made in one operation of the interpreter, so that no other thread can change the dict meanwhile.
        found = [entry for entry in list(self._calls.items()) if entry[0].partition(SAMPLE_MARK)[0] == request_id]
        self._aborts.extend(found)
        if self._lock.acquire(blocking=False):
            try:
                self._apply_aborts()
            finally:
                self._lock.release()
        return bool(found)

    def _tick(self) -> None:
        with ExitStack() as on_failure:
            on_failure.callback(self._abort_all)
            self._apply_aborts()
            finished = self._loop.tick()
            on_failure.pop_all()
        self._deliver(finished)

    def _apply_aborts(self) -> None:
        while self._aborts:
            name, call = self._aborts.popleft()
            request = self._loop.abort(name) if self._calls.get(name) is call else None
            if request is not None:
                self._deliver([request])

    def _abort_all(self) -> None:
        self._deliver(self._loop.abort_all())

    def _deliver(self, ended: Iterable[Request]) -> None:
        for request in ended:
            self._calls.pop(request.request_id).end(request)
