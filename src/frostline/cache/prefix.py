"""Prefix cache over both layer groups: which final pages another request can use, and which of its own are findable.

Knows tokens, salts and pages; no tensors, no requests. A request owns a `PrefixChain` and extends it by the tokens it
knows; `PrefixCache.match` is asked at each admission and `PrefixCache.register` is called as rows become final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from frostline.cache.keys import PageKey
from frostline.cache.pages import PADDING_PAGE, PageAccountingError, PageAllocator
from frostline.types import GROUPS, Group


class PrefixChain:
    """The keys of one request's full pages, in order, and how many of these pages it has registered.

    salt: requests of different salts share nothing; None differs from every string. registered: pages `[0, registered)`
    need no further look. The request's pages are others after each admission, so `PrefixCache.match` sets it anew; who
    admits without a match sets it to 0.
    """

    def __init__(self, page_size: int, *, salt: str | None = None) -> None:
        self.page_size = page_size
        self.registered = 0
        self._root = PageKey.root(salt)
        self._keys: list[PageKey] = []
        self._rest: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Tokens it knows."""
        return len(self._keys) * self.page_size + len(self._rest)

    def extend(self, tokens: Sequence[int]) -> None:
        """The request's next tokens: its prompt first, then what it keeps of each run. Those of one page are enough."""
        tokens, size = (*self._rest, *tokens), self.page_size
        full = len(tokens) - len(tokens) % size
        for start in range(0, full, size):
            parent = self._keys[-1] if self._keys else self._root
            self._keys.append(parent.child(tokens[start : start + size]))
        self._rest = tokens[full:]

    def key(self, index: int) -> PageKey:
        """The key of full page `index`. Raises IndexError for a page that is not known to its end."""
        return self._keys[index]


@dataclass(frozen=True, kw_only=True)
class PrefixHit:
    """Rows `[0, rows)` need no prefill: their pages, one per table entry from entry 0 on, are held for the caller.

    rows: a multiple of the page size; 0 when nothing was found. pages: `rows / page_size` entries in each group; an
    entry of the sliding group before the window is page 0, as if it had been evicted.
    """

    rows: int = 0
    pages: Mapping[Group, tuple[int, ...]] = field(default_factory=lambda: dict.fromkeys(GROUPS, ()))

    def held(self, group: Group) -> tuple[int, ...]:
        """The pages without the entries that stand for none: what to release."""
        return tuple(page for page in self.pages[group] if page != PADDING_PAGE)


class PrefixCache:
    """Finds and registers pages in the allocators of both groups; it holds none itself.

    allocators: shared with whoever gives pages to requests. window: `W`; a sliding layer at position q reads the rows k
    with `q - k < W`, so a request that goes on at row m needs the rows above `m - W` and nothing older.
    """

    def __init__(self, allocators: Mapping[Group, PageAllocator], *, page_size: int, window: int) -> None:
        self._sliding, self._full = allocators["sliding"], allocators["full"]
        self._page_size = page_size
        self._window = window

    def match(self, chain: PrefixChain, rows: int) -> PrefixHit:
        """The longest usable prefix of the chain's first `rows` tokens, retained in both groups.

        rows: what the caller would prefill without a cache: the prompt, or on resume all known tokens but the bonus. At
        least the last of them is always left to it, so that there are logits and a hidden state to go on from. The
        pages are the caller's, as if allocated: they count as owned at once (look at `num_available` afterwards) and
        are released like others, or by `give_back` when the request cannot be admitted after all.
        """
        present = self._present(chain, (rows - 1) // self._page_size)
        count = self._usable(chain, present)
        chain.registered = count
        skipped = self._first_needed(count)
        pages: dict[Group, tuple[int, ...]] = {
            "sliding": (PADDING_PAGE,) * skipped
            + tuple(_found(self._sliding, chain.key(index)) for index in range(skipped, count)),
            "full": tuple(_found(self._full, chain.key(index)) for index in range(count)),
        }
        hit = PrefixHit(rows=count * self._page_size, pages=MappingProxyType(pages))
        self._sliding.retain(hit.held("sliding"))
        self._full.retain(hit.held("full"))
        return hit

    def give_back(self, hit: PrefixHit) -> None:
        """Release what a `match` took, for a request that was not admitted; it may match again later."""
        self._sliding.release(hit.held("sliding"))
        self._full.release(hit.held("full"))

    def register(self, chain: PrefixChain, committed: int, tables: Mapping[Group, Sequence[int]]) -> None:
        """Make the request's full pages of rows `[0, committed)` findable; those registered before are not looked at.

        committed: rows that are final and hold finite numbers. It may lag behind the truth, and is at most the chain's
        length. tables: the request's page tables, with page 0 for an evicted entry: a page of the sliding group must be
        registered before it is evicted, or it is free then instead of cached. Where another request has registered the
        same rows first, this one's page stays its own and cannot be found.
        """
        full, sliding = tables["full"], tables["sliding"]
        for index in range(chain.registered, committed // self._page_size):
            self._full.register(full[index], chain.key(index))
            if sliding[index] != PADDING_PAGE:
                self._sliding.register(sliding[index], chain.key(index))
        chain.registered = max(chain.registered, committed // self._page_size)

    def _present(self, chain: PrefixChain, most: int) -> int:
        """How many of the chain's first `most` pages the full group has, without a gap."""
        for index in range(most):
            if self._full.find(chain.key(index)) is None:
                return index
        return max(most, 0)

    def _usable(self, chain: PrefixChain, present: int) -> int:
        """The largest count of pages, at most `present`, whose last window the sliding group has, or 0."""
        # From the end: a missing page rules out every count whose window holds it, that is all down to its own index.
        count, index = present, present - 1
        while count and index >= self._first_needed(count):
            if self._sliding.find(chain.key(index)) is None:
                count = index
            index -= 1
        return count

    def _first_needed(self, count: int) -> int:
        """Index of the first page of the sliding group that a request needs to go on after `count` pages."""
        return max(0, count * self._page_size - self._window + 1) // self._page_size


def _found(allocator: PageAllocator, key: PageKey) -> int:
    page = allocator.find(key)
    if page is None:
        raise PageAccountingError(f"{allocator.name} pages: {key} was there a moment ago")
    return page
