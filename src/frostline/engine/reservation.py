"""The pages that stays hold: taken as rows are needed, given back as a window moves on, zeroed after a failure.

Knows pages, tables and rows of both layer groups; nothing of tokens, time or order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from frostline.cache.pages import PADDING_PAGE, PageAllocator
from frostline.engine.stay import Stay
from frostline.speculative.step import PageCopy, Scrub, TableWrite
from frostline.types import GROUPS, Group

NOTHING: Mapping[Group, int] = dict.fromkeys(GROUPS, 0)


class Reservations:
    """window: `W` of the sliding group. What it changes in a stay's tables it also notes in the stay's `writes`."""

    def __init__(self, *, num_pages: Mapping[Group, int], page_size: int, window: int) -> None:
        self.page_size, self.window = page_size, window
        self.allocators = {group: PageAllocator(num_pages[group], name=group) for group in GROUPS}
        self._dirty: dict[Group, set[int]] = {group: set() for group in GROUPS}
        self._scrubs: list[Scrub] = []

    def available(self, group: Group) -> int:
        """Pages that can be given out now."""
        return self.allocators[group].num_available

    def covered(self, stay: Stay) -> int:
        """KV rows that its tables reach."""
        return min(len(stay.tables[group]) for group in GROUPS) * self.page_size

    def reach(self, stay: Stay, more: Mapping[Group, int] = NOTHING) -> int:
        """KV rows that its tables could reach with every page there is now, and `more` by group."""
        entries = (len(stay.tables[group]) + self.available(group) + more[group] for group in GROUPS)
        return min(entries) * self.page_size

    def begin(self, stay: Stay, pages: Mapping[Group, Sequence[int]]) -> None:
        """Tables that name pages which the stay holds already; page 0 stands for what its window has left behind."""
        for group in GROUPS:
            if pages[group]:
                stay.tables[group].extend(pages[group])
                stay.writes.append(TableWrite(row=stay.row, group=group, start=0, pages=tuple(pages[group])))
        stay.evicted = sum(page == PADDING_PAGE for page in pages["sliding"])

    def copy_tail(self, stay: Stay, sources: Mapping[Group, int]) -> None:
        """Pages of its own for the rows that it has beyond its last full page, copied from these."""
        rows = stay.scheduled % self.page_size
        self.grow(stay, stay.scheduled)
        for group in GROUPS:
            destination = stay.tables[group][-1]
            stay.copies.append(PageCopy(group=group, source=sources[group], destination=destination, rows=rows))

    def grow(self, stay: Stay, rows: int) -> None:
        """Pages up to `rows` KV rows in both groups; the caller has looked at `reach`."""
        entries = -(-rows // self.page_size)
        for group in GROUPS:
            table = stay.tables[group]
            if entries > len(table):
                pages = self.allocators[group].allocate(entries - len(table))
                stay.writes.append(TableWrite(row=stay.row, group=group, start=len(table), pages=pages))
                table.extend(pages)

    def evictable(self, stay: Stay, committed: int) -> int:
        """Pages of the sliding group that no query reads any more once `committed` rows are final."""
        gone = min(max(0, committed - self.window) // self.page_size, len(stay.tables["sliding"]))
        return max(0, gone - stay.evicted)

    def evict(self, stay: Stay, committed: int) -> None:
        """Give those pages back. committed: rows that the host knows to be final, never what it expects."""
        count = self.evictable(stay, committed)
        if count:
            table, start = stay.tables["sliding"], stay.evicted
            stay.evicted += count
            self._let_go(0, {"sliding": table[start : stay.evicted], "full": ()})
            table[start : stay.evicted] = [PADDING_PAGE] * count
            stay.writes.append(TableWrite(row=stay.row, group="sliding", start=start, pages=(PADDING_PAGE,) * count))

    def release(self, stay: Stay) -> None:
        """Everything that it holds; a second call is our own mistake and fails."""
        self._let_go(stay.row if stay.is_spoiled else 0, {group: stay.held(group) for group in GROUPS})
        stay.tables.clear()

    def spoil(self, stay: Stay) -> None:
        """Some of its numbers are not finite: nobody may find its pages, and they are zeroed once nobody holds them.

        What was prefilled and came back finite is left as it is: others may share it.
        """
        stay.is_spoiled = True
        for group in GROUPS:
            pages = [page for page in stay.tables[group][stay.prefilled // self.page_size :] if page != PADDING_PAGE]
            self.allocators[group].forget(pages)
            self._dirty[group].update(pages)

    def take_scrubs(self) -> tuple[Scrub, ...]:
        """What the next step has to zero before anyone gets it."""
        scrubs, self._scrubs = tuple(self._scrubs), []
        return scrubs

    def check(self, stays: Iterable[Stay]) -> None:
        """Integrity: free + cached + owned = total in both groups, the holders being exactly `stays`."""
        stays = list(stays)
        for group in GROUPS:
            self.allocators[group].check(Counter(page for stay in stays for page in stay.held(group)))

    def _let_go(self, row: int, pages: Mapping[Group, Sequence[int]]) -> None:
        """row: of a failed request, else 0."""
        scrub: dict[Group, tuple[int, ...]] = {}
        for group in GROUPS:
            allocator, dirty = self.allocators[group], self._dirty[group]
            allocator.release(pages[group])
            scrub[group] = tuple(page for page in pages[group] if page in dirty and not allocator.holders(page))
            dirty.difference_update(scrub[group])
        if row or any(scrub.values()):
            self._scrubs.append(Scrub(row=row, pages=scrub))
