"""Who owns which KV page of one layer group: free, cached or owned, with holders counted, and an integrity check.

Knows page numbers and the keys of what pages hold: no tensors, no requests, no layer group but for the name in its
messages. Page 0 is the padding page of the device side and is never given out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from frostline.cache.keys import PageKey

PADDING_PAGE = 0


class PageAccountingError(AssertionError):
    """Our own mistake in page ownership, with the figures; never something that a user can cause."""


class PageAllocator:
    """Pages 1 to `num_pages - 1` of one group, each in one of three states.

    free: nobody's, and nothing in it can be found. Freed pages go to the back of the list, so a page rests as long as
    possible before its next owner.
    owned: held by as many holders as its count says. Once its rows are final, `register` gives it a key to find it by.
    cached: without holders, but registered: `find` and `retain` bring it back, and `allocate` takes it when no free
    page is left, the least recently used first.
    """

    def __init__(self, num_pages: int, *, name: str) -> None:
        if num_pages < 2:
            raise PageAccountingError(f"{name} pages: a pool needs the padding page and one more, got {num_pages}")
        self.name = name
        self._free = deque(range(PADDING_PAGE + 1, num_pages))
        # The order of the dict is the order of use: its first page is evicted first.
        self._cached: dict[int, None] = {}
        self._counts = [0] * num_pages
        self._keys: dict[int, PageKey] = {}
        self._index: dict[PageKey, int] = {}

    @property
    def total(self) -> int:
        """Pages that can be given out; the padding page is not among them."""
        return len(self._counts) - 1

    @property
    def num_free(self) -> int:
        """Pages that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages without holders that can still be found."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """What `allocate` can give now: free and cached pages."""
        return self.num_free + self.num_cached

    @property
    def num_owned(self) -> int:
        return self.total - self.num_available

    def allocate(self, count: int) -> tuple[int, ...]:
        """`count` pages with one holder each: free ones first, then the least recently used of the cached.

        The caller has looked at `num_available` before.
        """
        if count > self.num_available:
            raise PageAccountingError(
                f"{self.name} pages: asked for {count}, {self.num_free} of {self.total} free and {self.num_cached} "
                f"cached"
            )
        while self.num_free < count:
            self._evict(next(iter(self._cached)))
        pages = tuple(self._free.popleft() for _ in range(count))
        for page in pages:
            self._counts[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """One more holder for each page; all must be owned or cached, and cached ones are owned again."""
        pages = tuple(pages)
        for page in pages:
            if page not in self._cached:
                self._require_owned(page, "retained")
        for page in pages:
            self._cached.pop(page, None)
            self._counts[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page. A page without holders is cached if it is registered, else free.

        pages: in the order of a request's table. They become the most recently used, the first one most of all, so that
        the end of a chain is evicted before its beginning: without its beginning the end cannot be found.
        """
        for page in reversed(pages):
            self._require_owned(page, "freed")
            self._counts[page] -= 1
            if self._counts[page]:
                continue
            if page in self._keys:
                self._cached[page] = None
            else:
                self._free.append(page)

    def holders(self, page: int) -> int:
        """How many hold it now; 0 for a page that is free or cached."""
        return self._counts[page]

    def register(self, page: int, key: PageKey) -> bool:
        """Make an owned page findable by what it holds; its rows are final from now on.

        False, and nothing changed, when another page already has this key: that one is found, this one stays without a
        key. A page keeps the key it has; a second, different one is our own mistake.
        """
        self._require_owned(page, "registered")
        current = self._keys.get(page)
        if current is not None:
            if current != key:
                raise PageAccountingError(f"{self.name} pages: page {page} holds {current} and was registered as {key}")
            return True
        if key in self._index:
            return False
        self._keys[page] = key
        self._index[key] = page
        return True

    def find(self, key: PageKey) -> int | None:
        """The page that holds exactly this, owned or cached. It is not yet held: `retain` it before any `allocate`."""
        return self._index.get(key)

    def forget(self, pages: Iterable[int]) -> None:
        """Nobody finds these pages any more: their rows turned out bad. Cached ones are free; holders keep theirs.

        Pages without a key, and the padding page, are left as they are.
        """
        for page in pages:
            if page in self._cached:
                self._evict(page)
            elif page in self._keys:
                del self._index[self._keys.pop(page)]

    def check(self, holders: Mapping[int, int] | None = None) -> None:
        """Prove free + cached + owned = total, each page on one side only, and that keys and pages name each other.

        holders: when given, the holders of every owned page, exact. Raises PageAccountingError with the figures.
        """
        owned = {page: count for page, count in enumerate(self._counts) if count}
        if self.num_available + len(owned) != self.total:
            raise PageAccountingError(
                f"{self.name} pages: {self.num_free} free + {self.num_cached} cached + {len(owned)} owned is not the "
                f"total {self.total}"
            )
        if PADDING_PAGE in owned or PADDING_PAGE in self._free or PADDING_PAGE in self._cached:
            raise PageAccountingError(f"{self.name} pages: the padding page {PADDING_PAGE} was given out or freed")
        if len({*self._free, *self._cached, *owned}) != self.total:
            raise PageAccountingError(
                f"{self.name} pages: the {self.num_free} free and {self.num_cached} cached ones hold a duplicate or an "
                f"owned page"
            )
        self._check_keys()
        if holders is not None and owned != dict(holders):
            wrong = sorted(page for page in owned.keys() | holders.keys() if owned.get(page) != holders.get(page))
            raise PageAccountingError(
                f"{self.name} pages: {len(owned)} owned, {len(holders)} held by requests; counts differ on pages "
                f"{wrong[:8]}"
            )

    def _check_keys(self) -> None:
        named = {page: key for key, page in self._index.items()}
        wrong = {page for page in named.keys() | self._keys.keys() if named.get(page) is not self._keys.get(page)}
        wrong |= {page for page in self._free if page in self._keys}
        wrong |= {page for page in self._cached if page not in self._keys}
        if wrong or len(named) != len(self._index):
            raise PageAccountingError(
                f"{self.name} pages: {len(self._index)} keys, {len(self._keys)} registered pages; they disagree on "
                f"pages {sorted(wrong)[:8]}"
            )

    def _evict(self, page: int) -> None:
        """A cached page is free."""
        del self._cached[page]
        del self._index[self._keys.pop(page)]
        self._free.append(page)

    def _require_owned(self, page: int, verb: str) -> None:
        if not PADDING_PAGE < page < len(self._counts) or self._counts[page] == 0:
            raise PageAccountingError(
                f"{self.name} pages: page {page} was {verb} but has no owner; {self.num_free} of {self.total} free, "
                f"{self.num_cached} cached"
            )
