"""The device side on a thread of its own, in order: what a stream is on a GPU, for devices that have none.

On a CPU `launch` computes; here it returns at once and one worker thread computes, so that a loop which launches before
it collects overlaps host and device work. Kernels and recorded iterations leave the interpreter to the host meanwhile.
Knows the order of steps; nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

from frostline.runner.spans import Watch, unwatched
from frostline.speculative.step import AroundExecutor, Executor, Step, StepResult


class WorkerExecutor(AroundExecutor):
    """An Executor around another whose `launch` computes: steps run one after another, first in, first out.

    What `launch` of the inner one raises comes out of `collect`. The thread ends with `close`, with this object, or
    with the interpreter, after the steps it has been given. watch: is told of each step's work, as "device".
    release: lets a thread's own helpers go (runner.threads.team_release). The calling thread's go before each step, so
    that they do not stand in the way of the device thread's, and these go when nothing is in flight any more.
    """

    def __init__(
        self, inner: Executor, *, watch: Watch = unwatched, release: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(inner)
        self._watch = watch
        self._release = release
        self._in_flight, self._closed = 0, False
        self._numbers = count()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="frostline-device")

    def launch(self, step: Step) -> Future[Any]:
        """Queue the step."""
        self._release()
        self._in_flight += 1
        return self._worker.submit(self._work, next(self._numbers), step)

    def collect(self, flight: Future[Any]) -> StepResult:
        """Wait for the step, not for those behind it, and read its result on the calling thread."""
        try:
            return self._inner.collect(flight.result())
        finally:
            self._in_flight -= 1
            if not self._in_flight and not self._closed:
                self._worker.submit(self._release)

    def _work(self, number: int, step: Step) -> Any:
        with self._watch("device", step=number):
            return self._inner.launch(step)

    def close(self) -> None:
        """Finish what was launched and end the thread; nothing can be launched any more."""
        self._closed = True
        self._worker.shutdown()
