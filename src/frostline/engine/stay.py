"""One stay of a request on the device, from admission to the release of what it held: lengths and numbers.

A request that is preempted has another stay later. Work that was launched for the first one still names it, so that a
result which comes late is known for what it is, and what the first one held is released only when nobody writes to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from frostline.cache.pages import PADDING_PAGE
from frostline.speculative.step import PageCopy, TableWrite
from frostline.types import GROUPS, Group


@dataclass(kw_only=True, eq=False)
class Stay:
    """row: never 0. target: rows to prefill before the first iteration.

    tables: page tables as the device will have them, page 0 for an evicted entry. evicted: leading entries of the
    sliding table that are page 0. writes, copies: changes of the tables and of pages that no step has told the device.
    scheduled, prefilled: rows of `target` that the device has been told to write, and whose numbers came back finite.
    due_least, due_most: bounds on the tokens that launched work has still to return. in_flight: steps that are launched
    and not read. is_spoiled: some of its numbers were not finite.
    """

    row: int
    target: int
    tables: dict[Group, list[int]] = field(default_factory=lambda: {group: [] for group in GROUPS})
    evicted: int = 0
    writes: list[TableWrite] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    scheduled: int = 0
    prefilled: int = 0
    due_least: int = 0
    due_most: int = 0
    in_flight: int = 0
    is_spoiled: bool = False

    @property
    def unscheduled(self) -> int:
        """Rows still to be prefilled."""
        return self.target - self.scheduled

    def held(self, group: Group) -> tuple[int, ...]:
        """Its pages, evicted entries left out."""
        return tuple(page for page in self.tables[group] if page != PADDING_PAGE)

    def num_held(self, group: Group) -> int:
        return len(self.tables[group]) - (self.evicted if group == "sliding" else 0)

    def take_writes(self) -> tuple[TableWrite, ...]:
        writes, self.writes = tuple(self.writes), []
        return writes

    def take_copies(self) -> tuple[PageCopy, ...]:
        copies, self.copies = tuple(self.copies), []
        return copies
