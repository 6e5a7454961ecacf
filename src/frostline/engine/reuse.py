"""What a request can take over from others, and what it leaves for them: its full pages, found by what they hold.

Knows requests, their tokens and their stays; nothing of queues, time or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from frostline.cache.pages import PageAllocator
from frostline.cache.prefix import PrefixCache, PrefixHit
from frostline.engine.request import Request
from frostline.types import GROUPS, Group

NOTHING_FOUND = PrefixHit(rows=0, pages=dict.fromkeys(GROUPS, ()))


class Reuse:
    """The prefix cache as requests use it. A request without a `chain` neither finds nor leaves anything."""

    def __init__(self, allocators: Mapping[Group, PageAllocator], *, page_size: int, window: int) -> None:
        self._cache = PrefixCache(allocators, page_size=page_size, window=window)
        self._page_size = page_size

    def find(self, request: Request) -> PrefixHit:
        """Pages with the beginning of what the request has to prefill, held for it; never with its last row."""
        if request.chain is None:
            return NOTHING_FOUND
        if request.params.prompt_logprobs is not None:
            # They are made of every row of the prompt. What it computes then, others may have.
            request.chain.registered = 0
            return NOTHING_FOUND
        rows = request.rows_to_prefill
        self._know(request, rows)
        return self._cache.match(request.chain, rows)

    def give_back(self, hit: PrefixHit) -> None:
        """Release what `find` took."""
        self._cache.give_back(hit)

    def keep(self, request: Request, rows: int) -> None:
        """Let others find the request's full pages of rows `[0, rows)`.

        rows: written by steps that are launched, so that steps launched later can read them. If their numbers turn out
        not to be finite, the pages are forgotten (Reservations.spoil).
        """
        chain = request.chain
        if chain is not None and rows // self._page_size > chain.registered:
            self._know(request, rows)
            self._cache.register(chain, rows, request.on_device.tables)

    @staticmethod
    def _know(request: Request, rows: int) -> None:
        chain = request.chain
        if chain is not None and rows > len(chain):
            chain.extend(request.tokens(len(chain), rows))
