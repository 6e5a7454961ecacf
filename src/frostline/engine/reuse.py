"""What a request can take over from others, and what it leaves for them: pages of the rows that both begin with.

Knows requests, their tokens and their stays; nothing of queues, time or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frostline.cache.pages import PADDING_PAGE, PageAllocator
from frostline.cache.prefix import PrefixCache, PrefixHit
from frostline.engine.request import Request
from frostline.types import GROUPS, Group


@dataclass(frozen=True, kw_only=True)
class Found:
    """Rows `[0, rows)` that a request need not prefill. hit: their full pages, held for it.

    tail: the page of each group whose first `rows % page_size` rows it has to copy; None where rows end with a page.
    """

    rows: int
    hit: PrefixHit
    tail: Mapping[Group, int] | None = None


class Reuse:
    """The prefix cache as requests use it, and prompts shared among samples, which need no cache.

    A request without a `chain` neither finds nor leaves anything in the cache.
    """

    def __init__(self, allocators: Mapping[Group, PageAllocator], *, page_size: int, window: int) -> None:
        self._allocators = allocators
        self._cache = PrefixCache(allocators, page_size=page_size, window=window)
        self._page_size, self._window = page_size, window

    def find(self, request: Request) -> Found:
        """The beginning of what the request has to prefill, never with its last row, so that a seed can be made."""
        shared = self._of_parent(request)
        if shared is not None:
            return shared
        chain = request.chain
        if chain is None:
            return Found(rows=0, hit=PrefixHit())
        if request.params.prompt_logprobs is not None:
            # They are made of every row of the prompt. What it computes then, others may have.
            chain.registered = 0
            return Found(rows=0, hit=PrefixHit())
        rows = request.rows_to_prefill
        self._know(request, rows)
        hit = self._cache.match(chain, rows)
        return Found(rows=hit.rows, hit=hit)

    def give_back(self, found: Found) -> None:
        """Release what `find` took."""
        self._cache.give_back(found.hit)

    def keep(self, request: Request, rows: int) -> None:
        """Let others find the request's full pages of rows `[0, rows)`.

        rows: written by steps that are launched, so that steps launched later can read them. If their numbers turn out
        not to be finite, the pages are forgotten (Reservations.spoil).
        """
        chain = request.chain
        if chain is not None and rows // self._page_size > chain.registered:
            self._know(request, rows)
            self._cache.register(chain, rows, request.on_device.tables)

    def _of_parent(self, request: Request) -> Found | None:
        """All of the prompt but its last row from sample 0, if that has it on the device, its last window too."""
        parent = request.parent
        if parent is None or parent.stay is None or parent.stay.scheduled < parent.prompt_len or request.output_ids:
            return None
        rows, tables = request.prompt_len - 1, parent.stay.tables
        count, rest = divmod(rows, self._page_size)
        first = max(0, rows - self._window + 1) // self._page_size
        needed = tables["sliding"][first : count + (rest > 0)]
        if PADDING_PAGE in needed:
            return None
        pages: dict[Group, tuple[int, ...]] = {
            "sliding": (PADDING_PAGE,) * min(first, count) + tuple(tables["sliding"][first:count]),
            "full": tuple(tables["full"][:count]),
        }
        hit = PrefixHit(rows=count * self._page_size, pages=pages)
        for group in GROUPS:
            self._allocators[group].retain(hit.held(group))
        if request.chain is not None:
            self._know(request, rows)
            request.chain.registered = count
        return Found(rows=rows, hit=hit, tail={group: tables[group][count] for group in GROUPS} if rest else None)

    @staticmethod
    def _know(request: Request, rows: int) -> None:
        chain = request.chain
        if chain is not None and rows > len(chain):
            chain.extend(request.tokens(len(chain), rows))
