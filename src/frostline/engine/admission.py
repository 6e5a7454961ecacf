"""Who may run: the checks a request must pass on arrival, and the rows and pages it holds while it runs.

Knows sizes, rows and pages; nothing of tensors, time or order. For now a request's pages are all reserved at admission,
so nothing can run out on the way.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from frostline.cache.pages import PageAllocator
from frostline.engine.request import Request
from frostline.errors import RequestError
from frostline.speculative.step import Executor, PageGrowth
from frostline.types import GROUPS, Group, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for. max_context: tokens, prompt included. margin: positions past the end, `2 N_max`.

    pages: pages of the smaller layer group that exist at all. vocab_size: None leaves token ids unchecked.
    """

    max_context: int
    margin: int
    page_size: int
    pages: int
    max_steps: int
    vocab_size: int | None = None

    @classmethod
    def of(cls, executor: Executor, *, max_steps: int, vocab_size: int | None) -> Limits:
        return cls(
            max_context=executor.max_context,
            margin=2 * executor.verify_width,
            page_size=executor.page_size,
            pages=min(executor.num_pages[group] for group in GROUPS) - 1,
            max_steps=max_steps,
            vocab_size=vocab_size,
        )

    def pages_for(self, prompt_len: int, max_new_tokens: int) -> int:
        """Pages that each group must hold for a whole request."""
        return -(-(prompt_len + max_new_tokens + self.margin) // self.page_size)

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> tuple[int, int]:
        """(new tokens after the cap by the context, own draft depth). Raises RequestError for what can never run."""
        length = len(prompt_ids)
        if length == 0:
            raise RequestError("the prompt is empty; give at least one token")
        if length >= self.max_context:
            raise RequestError(
                f"the prompt has {length} tokens and the context holds {self.max_context}, new ones included; shorten "
                f"the prompt or raise max_model_len"
            )
        self._check_ids(prompt_ids, "the prompt")
        self._check_ids(params.stop_token_ids, "stop_token_ids")
        self._check_ids(params.allowed_token_ids or (), "allowed_token_ids")
        self._check_ids([token for token, _ in params.bias_pairs], "logit_bias")
        depth = self.max_steps if params.num_steps is None else params.num_steps
        if depth > self.max_steps:
            raise RequestError(
                f"num_steps {depth} of this request is over the engine's {self.max_steps}; lower it or load the engine "
                f"with SpeculativeConfig(num_steps={depth})"
            )
        room = self.max_context - length
        max_new_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        need = self.pages_for(length, max_new_tokens)
        if need > self.pages:
            raise RequestError(
                f"the request needs {need} KV pages of {self.page_size} rows ({length} prompt tokens, {max_new_tokens} "
                f"new ones, {self.margin} for drafts) and there are {self.pages}; lower max_tokens or raise kv_pages"
            )
        return max_new_tokens, depth

    def _check_ids(self, ids: Collection[int], what: str) -> None:
        if self.vocab_size is None or not ids:
            return
        for wrong in (min(ids), max(ids)):
            if not 0 <= wrong < self.vocab_size:
                raise RequestError(
                    f"{what} holds token id {wrong}, outside the vocabulary of {self.vocab_size}; was it made by "
                    f"another model's tokenizer?"
                )


class RowAllocator:
    """Rows 1 to `num_rows - 1`, lowest first so that few rows stay dense; row 0 is padding."""

    def __init__(self, num_rows: int) -> None:
        self.total = num_rows - 1
        self._free = list(range(1, num_rows))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        return heapq.heappop(self._free)

    def release(self, row: int) -> None:
        if row in self._free or not 0 < row <= self.total:
            raise AssertionError(f"row {row} freed, {self.num_free} of {self.total} free")
        heapq.heappush(self._free, row)


class Admission:
    """Gives a request its row and all its pages, and takes them back exactly once."""

    def __init__(self, limits: Limits, *, num_rows: int, num_pages: Mapping[Group, int]) -> None:
        self.limits = limits
        self.rows = RowAllocator(num_rows)
        self.pages = {group: PageAllocator(num_pages[group], name=group) for group in GROUPS}
        self._spoiled: list[int] = []

    def admit(self, request: Request) -> tuple[PageGrowth, ...] | None:
        """Row and pages, both groups; None, with nothing taken, when one of them does not suffice now."""
        need = self.limits.pages_for(request.prompt_len, request.max_new_tokens)
        if not self.rows.num_free or any(self.pages[group].num_free < need for group in GROUPS):
            return None
        request.row = self.rows.allocate()
        request.pages = {group: self.pages[group].allocate(need) for group in GROUPS}
        return tuple(PageGrowth(row=request.row, group=g, start=0, pages=request.pages[g]) for g in GROUPS)

    def require(self, request: Request, rows: int) -> None:
        """Checks that it holds `rows` KV rows, as the margin of `2 N_max` (one step in flight, one next) ensures."""
        held = min(len(request.pages[group]) for group in GROUPS) * self.limits.page_size
        if rows > held:
            raise AssertionError(f"{request.request_id}: {rows} KV rows wanted, {held} held")

    def release(self, request: Request) -> None:
        """Everything the request holds; a second call is our own mistake and fails."""
        self.rows.release(request.row)
        if request.finish is not None and request.finish.reason == "error":
            self._spoiled.append(request.row)
        for group in GROUPS:
            self.pages[group].release(request.pages.pop(group))
        request.row = 0

    def take_spoiled(self) -> tuple[int, ...]:
        """Rows left with numbers that are not finite, for the next step to scrub before anyone gets what they held."""
        rows, self._spoiled = tuple(self._spoiled), []
        return rows

    def check(self, running: Iterable[Request]) -> None:
        """Integrity: free + owned = total in both groups and in rows, owners being exactly `running`."""
        running = list(running)
        for group in GROUPS:
            self.pages[group].check(Counter(page for request in running for page in request.pages[group]))
        if self.rows.num_free + len({request.row for request in running}) != self.rows.total:
            raise AssertionError(
                f"rows: {self.rows.num_free} free + {len(running)} running is not the total {self.rows.total}"
            )
