"""Between the fuzzer's engine and device side: fewer pages than there are, unequal page numbers, late work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from frostline.speculative.executor import DeviceExecutor, InFlight
from frostline.speculative.step import PageCopy, Step, StepResult
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
        return self._inner.launch(
            replace(
                step,
                scrub=tuple(
                    replace(one, pages={group: self._turned(group, own) for group, own in one.pages.items()})
                    for one in step.scrub
                ),
                tables=tuple(replace(one, pages=self._turned(one.group, one.pages)) for one in step.tables),
                copies=tuple(map(self._turned_copy, step.copies)),
            )
        )

    def collect(self, flight: InFlight) -> StepResult:
        return self._inner.collect(flight)

    def _turned(self, group: Group, pages: Sequence[int]) -> tuple[int, ...]:
        if group == "full":
            return tuple(pages)
        count = self._inner.num_pages["sliding"]
        return tuple(count - page if page else 0 for page in pages)

    def _turned_copy(self, copy: PageCopy) -> PageCopy:
        source, destination = self._turned(copy.group, (copy.source, copy.destination))
        return replace(copy, source=source, destination=destination)


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
