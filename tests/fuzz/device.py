"""Between the fuzzer's engine and device side: fewer pages than there are, unequal page numbers, late work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from frostline.speculative.executor import DeviceExecutor, InFlight
from frostline.speculative.step import PageGrowth, Step, StepResult
from frostline.types import Group


class Tight:
    """Offers only some of the device's pages.

    The sliding group's page numbers are turned round on their way: left alone, both groups of a request would often
    have the same ones, and a mix-up of the groups would not show.
    """

    def __init__(self, inner: DeviceExecutor, pages: Mapping[Group, int]) -> None:
        self._inner = inner
        self.num_pages: Mapping[Group, int] = {group: count + 1 for group, count in pages.items()}
        assert all(self.num_pages[group] <= inner.num_pages[group] for group in pages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, step: Step) -> InFlight:
        return self._inner.launch(replace(step, growth=tuple(map(self._turned, step.growth))))

    def collect(self, flight: InFlight) -> StepResult:
        return self._inner.collect(flight)

    def _turned(self, growth: PageGrowth) -> PageGrowth:
        if growth.group == "full":
            return growth
        count = self._inner.num_pages["sliding"]
        return replace(growth, pages=tuple(count - page if page else 0 for page in growth.pages))


class Lagging:
    """A device side that does a step's work as late as it may: when its result is collected, in launch order."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._queue: deque[Step] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, step: Step) -> Step:
        self._queue.append(step)
        assert len(self._queue) <= 2, "more than one step ahead"
        return step

    def collect(self, flight: Step) -> StepResult:
        assert self._queue.popleft() is flight, "collected out of order"
        result: StepResult = self._inner.collect(self._inner.launch(flight))
        return result
