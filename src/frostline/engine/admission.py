"""Who may run: the checks a request must pass on arrival, and the rows and pages it holds while it runs.

Knows sizes, rows and pages; nothing of tensors, time or order. Pages are taken as a request grows (engine.reservation);
admission makes sure that what it knows, and two iterations, fit at that moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from frostline.engine.request import Request
from frostline.engine.reservation import Reservations
from frostline.engine.reuse import Reuse
from frostline.engine.stay import Stay
from frostline.errors import RequestError
from frostline.speculative.step import Executor
from frostline.types import GROUPS, Group, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for. max_context: tokens, prompt included. margin: positions past the end, `2 N_max`.

    pages: pages of each layer group that can be given out at all. window: `W` of the sliding group. vocab_size: None
    leaves token ids unchecked.
    """

    max_context: int
    margin: int
    page_size: int
    pages: Mapping[Group, int]
    window: int
    max_steps: int
    vocab_size: int | None = None

    @classmethod
    def of(cls, executor: Executor, *, max_steps: int, vocab_size: int | None) -> Limits:
        return cls(
            max_context=executor.max_context,
            margin=2 * executor.verify_width,
            page_size=executor.page_size,
            pages={group: executor.num_pages[group] - 1 for group in GROUPS},
            window=executor.window,
            max_steps=max_steps,
            vocab_size=vocab_size,
        )

    def needs(self, tokens: int) -> Mapping[Group, int]:
        """Pages that a request of so many tokens holds at most while it iterates, by group.

        In the sliding group no more than a window, one iteration in flight and one to come can be spread over: a longer
        prompt is prefilled in chunks that fit, and what leaves the window is given back.
        """
        whole = -(-(tokens + self.margin) // self.page_size)
        moving = (self.window + self.margin - 2) // self.page_size + 2
        return {"sliding": min(whole, moving), "full": whole}

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
        self._check_pages(length, max_new_tokens)
        return max_new_tokens, depth

    def _check_pages(self, length: int, max_new_tokens: int) -> None:
        needs = self.needs(length + max_new_tokens)
        if needs["full"] > self.pages["full"]:
            raise RequestError(
                f"the request needs {needs['full']} KV pages of {self.page_size} rows ({length} prompt tokens, "
                f"{max_new_tokens} new ones, {self.margin} for drafts) and there are {self.pages['full']}; lower "
                f"max_tokens or raise kv_pages"
            )
        if needs["sliding"] > self.pages["sliding"]:
            raise RequestError(
                f"the request needs {needs['sliding']} KV pages of {self.page_size} rows in the sliding layers (window "
                f"{self.window}, {self.margin} for drafts) and there are {self.pages['sliding']}; raise kv_pages or "
                f"sliding_kv_pages"
            )

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
    """Gives requests rows and the right to pages, and takes everything back exactly once.

    What a request held when it left is kept ("draining") while a launched step may still write to it: that step may
    leave numbers which are not finite, and nobody may get the row or the pages before these are known and zeroed.
    """

    def __init__(self, limits: Limits, *, num_rows: int, num_pages: Mapping[Group, int]) -> None:
        self.limits = limits
        self.rows = RowAllocator(num_rows)
        self.pages = Reservations(num_pages=num_pages, page_size=limits.page_size, window=limits.window)
        self.reuse = Reuse(self.pages.allocators, page_size=limits.page_size, window=limits.window)
        self._draining: list[Stay] = []

    def admit(self, request: Request, *, promised: Mapping[Group, int]) -> bool:
        """A row, if what the request knows, and two iterations, fit now; False, with nothing taken, if they do not.

        What others have computed of it already counts as fitting, and is its own from then on.
        promised: pages that are free but that those who run were admitted for.
        """
        if not self.rows.num_free:
            return False
        found, needs = self.reuse.find(request), self.limits.needs(request.known)
        lacks = {group: needs[group] - len(found.hit.held(group)) for group in GROUPS}
        if any(self.pages.available(group) - promised[group] < lacks[group] for group in GROUPS):
            self.reuse.give_back(found)
            return False
        stay = Stay(
            row=self.rows.allocate(), target=request.rows_to_prefill, scheduled=found.rows, prefilled=found.rows
        )
        self.pages.begin(stay, found.hit.pages)
        if found.tail is not None:
            self.pages.copy_tail(stay, found.tail)
        request.enter(stay)
        return True

    def leave(self, request: Request) -> None:
        """The request is over or preempted: what it holds is free now, or once its work in flight is read."""
        self.reuse.keep(request, request.committed)
        stay = request.leave()
        if request.finish is not None and request.finish.reason == "error":
            self.pages.spoil(stay)
        if stay.in_flight:
            self._draining.append(stay)
        else:
            self._release(stay)

    def release_drained(self, *, lost: bool = False) -> None:
        """Free what left before and has no work in flight any more.

        lost: nobody will read what is in flight, as the device side failed. It may have written anything.
        """
        draining, self._draining = self._draining, []
        for stay in draining:
            if lost:
                self.pages.spoil(stay)
                stay.in_flight = 0
            if stay.in_flight:
                self._draining.append(stay)
            else:
                self._release(stay)

    @property
    def is_draining(self) -> bool:
        return bool(self._draining)

    def draining(self) -> Mapping[Group, int]:
        """Pages that the next results will free, by group, unless others share them."""
        return {group: sum(stay.num_held(group) for stay in self._draining) for group in GROUPS}

    def check(self, running: Iterable[Request]) -> None:
        """Integrity of pages and rows: each is free, or held by exactly who is running or draining."""
        stays = [*(request.stay for request in running if request.stay is not None), *self._draining]
        self.pages.check(stays)
        if self.rows.num_free + len({stay.row for stay in stays}) != self.rows.total:
            raise AssertionError(
                f"rows: {self.rows.num_free} free + {len(stays)} held is not the total {self.rows.total}"
            )

    def _release(self, stay: Stay) -> None:
        self.rows.release(stay.row)
        self.pages.release(stay)
