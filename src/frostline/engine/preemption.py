"""Who gives way when pages are short: the newest running request, for an older one.

Knows running requests in order of arrival, and pages; nothing of tokens, plans or steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from frostline.engine.admission import Admission
from frostline.engine.request import Request
from frostline.engine.stats import EngineCounters
from frostline.types import GROUPS, Group


@dataclass(kw_only=True)
class Pressure:
    """Finds pages for running requests, oldest first, in one tick after another.

    running, waiting: the scheduler's own. Nobody overtakes in the queue and who is preempted goes back to its head, so
    both are in order of arrival and everyone running is older than everyone waiting.

    A request that cannot have its pages now sits the tick out with what it holds, and so do all that are newer and need
    more. That never lasts: the oldest can take from everyone else, and alone it fits (Limits.check).
    """

    admission: Admission
    counters: EngineCounters
    running: dict[int, Request]
    waiting: deque[Request]
    is_short: bool = field(default=False, init=False)

    def begin(self) -> None:
        """A new tick."""
        self.is_short = False

    def secure(self, request: Request, *, least: int, most: int) -> int:
        """Pages for up to `most` KV rows and no fewer than `least`: how many rows there are pages for now, 0 for none.

        What left the request's window is given back first; whoever has the same beginning may still find it.
        """
        pages, stay, committed = self.admission.pages, request.on_device, request.committed
        self.admission.reuse.keep(request, committed)
        pages.evict(stay, committed)
        covered = pages.covered(stay)
        if covered >= most:
            return most
        if self.is_short:
            return covered if covered >= least else 0
        while pages.reach(stay) < least:
            newest = next(reversed(self.running.values()))
            if newest is request or pages.reach(stay, self._coming(request)) >= least:
                self.is_short = True
                return 0
            self._preempt(newest)
        rows = min(most, pages.reach(stay))
        pages.grow(stay, rows)
        return rows

    def promised(self) -> Mapping[Group, int]:
        """Pages that running requests need for what they know and two iterations, and do not hold yet."""
        promised = dict.fromkeys(GROUPS, 0)
        for request in self.running.values():
            needs = self.admission.limits.needs(request.known)
            for group in GROUPS:
                promised[group] += max(0, needs[group] - request.on_device.num_held(group))
        return promised

    def _coming(self, request: Request) -> Mapping[Group, int]:
        """Pages that work in flight will free: what others left behind, and what leaves the request's own window."""
        coming, stay = dict(self.admission.draining()), request.on_device
        if stay.in_flight:
            coming["sliding"] += self.admission.pages.evictable(stay, stay.scheduled)
        return coming

    def _preempt(self, request: Request) -> None:
        """It loses row and pages, keeps its tokens, and is the next to be admitted."""
        del self.running[request.row]
        self.admission.leave(request)
        self.waiting.appendleft(request)
        request.preemptions += 1
        self.counters.preemptions += 1
