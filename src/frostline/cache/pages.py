"""Who owns which KV page of one layer group: a free list, reference counts, an integrity check.

Knows page numbers only: no tensors, no requests, no layer group but for the name in its messages. Page 0 is the padding
page of the device side and is never given out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

PADDING_PAGE = 0


class PageAccountingError(AssertionError):
    """Our own mistake in page ownership, with the figures; never something that a user can cause."""


class PageAllocator:
    """Pages 1 to `num_pages - 1` of one group. A page is free, or owned by as many holders as its count says.

    Freed pages go to the back of the free list, so a page rests as long as possible before its next owner.
    """

    def __init__(self, num_pages: int, *, name: str) -> None:
        if num_pages < 2:
            raise PageAccountingError(f"{name} pages: a pool needs the padding page and one more, got {num_pages}")
        self.name = name
        self._free = deque(range(PADDING_PAGE + 1, num_pages))
        self._counts = [0] * num_pages

    @property
    def total(self) -> int:
        """Pages that can be given out; the padding page is not among them."""
        return len(self._counts) - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_owned(self) -> int:
        return sum(count > 0 for count in self._counts)

    def allocate(self, count: int) -> tuple[int, ...]:
        """`count` free pages, each with one holder. The caller has looked at `num_free` before."""
        if count > len(self._free):
            raise PageAccountingError(f"{self.name} pages: asked for {count}, {len(self._free)} of {self.total} free")
        pages = tuple(self._free.popleft() for _ in range(count))
        for page in pages:
            self._counts[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """One more holder for each page; all must be owned already."""
        pages = tuple(pages)
        for page in pages:
            self._require_owned(page, "retained")
        for page in pages:
            self._counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each page; a page without holders is free again."""
        for page in pages:
            self._require_owned(page, "freed")
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._free.append(page)

    def check(self, holders: Mapping[int, int] | None = None) -> None:
        """Prove free + owned = total, each page on one side only, and, when given, the holders of every owned page.

        Raises PageAccountingError with the figures.
        """
        free, owned = len(self._free), self.num_owned
        if free + owned != self.total:
            raise PageAccountingError(f"{self.name} pages: {free} free + {owned} owned is not the total {self.total}")
        if len(set(self._free)) != free or any(self._counts[page] for page in self._free):
            raise PageAccountingError(f"{self.name} pages: the {free} free ones hold a duplicate or an owned page")
        if self._counts[PADDING_PAGE] or PADDING_PAGE in self._free:
            raise PageAccountingError(f"{self.name} pages: the padding page {PADDING_PAGE} was given out or freed")
        if holders is None:
            return
        actual = {page: count for page, count in enumerate(self._counts) if count}
        if actual != dict(holders):
            wrong = sorted(page for page in actual.keys() | holders.keys() if actual.get(page) != holders.get(page))
            raise PageAccountingError(
                f"{self.name} pages: {len(actual)} owned, {len(holders)} held by requests; counts differ on pages "
                f"{wrong[:8]}"
            )

    def _require_owned(self, page: int, verb: str) -> None:
        if not PADDING_PAGE < page < len(self._counts) or self._counts[page] == 0:
            raise PageAccountingError(
                f"{self.name} pages: page {page} was {verb} but has no owner; {self.num_free} of {self.total} free"
            )
