"""The device side on a thread of its own, in order: what a stream is on a GPU, for devices that have none.

On a CPU `launch` computes; here it returns at once and one worker thread computes, so that a loop which launches before
it collects overlaps host and device work. Kernels and recorded iterations leave the interpreter to the host meanwhile.
Knows the order of steps; nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

from frostline.runner.spans import Watch, unwatched
from frostline.speculative.step import Executor, Step, StepResult
from frostline.types import Group


class WorkerExecutor:
    """An Executor around another whose `launch` computes: steps run one after another, first in, first out.

    What `launch` of the inner one raises comes out of `collect`. The thread ends with `close`, with this object, or
    with the interpreter, after the steps it has been given. watch: is told of each step's work, as "device".
    """

    def __init__(self, inner: Executor, *, watch: Watch = unwatched) -> None:
        self._inner = inner
        self._watch = watch
        self._numbers = count()
        self.num_rows, self.page_size = inner.num_rows, inner.page_size
        self.num_pages: Mapping[Group, int] = inner.num_pages
        self.max_context, self.verify_width = inner.max_context, inner.verify_width
        self.window = inner.window
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="frostline-device")

    def launch(self, step: Step) -> Future[Any]:
        """Queue the step."""
        return self._worker.submit(self._work, next(self._numbers), step)

    def collect(self, flight: Future[Any]) -> StepResult:
        """Wait for the step, not for those behind it, and read its result on the calling thread."""
        return self._inner.collect(flight.result())

    def _work(self, number: int, step: Step) -> Any:
        with self._watch("device", step=number):
            return self._inner.launch(step)

    def close(self) -> None:
        """Finish what was launched and end the thread; nothing can be launched any more."""
        self._worker.shutdown()
