"""Seeded faults of the engine and of the device side, one each, for the tests that expect the oracle to notice.

Many of them leave the emitted tokens alone: there only the canaries or the drafting reference can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from frostline.cache.keys import PageKey, digest
from frostline.cache.pages import PageAllocator
from frostline.cache.pool import Pool
from frostline.cache.prefix import PrefixCache
from frostline.engine import batch, engine, scheduler
from frostline.engine.admission import Admission
from frostline.engine.request import Request
from frostline.engine.reservation import Reservations
from frostline.engine.reuse import Reuse
from frostline.engine.scheduler import Scheduler
from frostline.engine.stay import Stay
from frostline.model import attention
from frostline.model.attention import FrozenContext, PagedContext
from frostline.runner.processing import RuleState
from frostline.runner.rows import Rows
from frostline.runner.sampling import SamplingRows
from frostline.speculative import draft as drafting
from frostline.speculative import iteration
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import PrefillChunk, TableWrite
from frostline.types import Group

Patch = pytest.MonkeyPatch


def _tables_of_one_group(patch: Patch) -> None:
    """Sliding layers of the target go through the full group's page table (reported.md 23)."""
    _tables_for(patch, PagedContext)


def _draft_tables_of_one_group(patch: Patch) -> None:
    _tables_for(patch, FrozenContext)


def _tables_for(patch: Patch, context: type) -> None:
    init = context.__init__  # type: ignore[misc]

    def wrong(self: Any, *args: Any, tables: Any, **rest: Any) -> None:
        init(self, *args, tables={"sliding": tables["full"], "full": tables["full"]}, **rest)

    patch.setattr(context, "__init__", wrong)


def _window_too_wide(patch: Patch) -> None:
    _window(patch, PagedContext, 1)


def _window_too_narrow(patch: Patch) -> None:
    _window(patch, PagedContext, -1)


def _draft_window_too_wide(patch: Patch) -> None:
    _window(patch, FrozenContext, 1)


def _window(patch: Patch, context: type, change: int) -> None:
    """A window off by one, in the predicate alone: the pages gathered are those of the right one."""
    real = attention.page_window
    init = context.__init__  # type: ignore[misc]

    class Spec:
        def __init__(self, spec: Any) -> None:
            self._spec = spec

        def __getattr__(self, name: str) -> Any:
            return self._spec.window + change if name == "window" else getattr(self._spec, name)

    def wrong(self: Any, cache: Any, spec: Any, *args: Any, **rest: Any) -> None:
        init(self, cache, Spec(spec), *args, **rest)

    def pages(table: Any, base: Any, window: int | None, *args: Any) -> Any:
        return real(table, base, None if window is None else window + abs(change), *args)

    patch.setattr(context, "__init__", wrong)
    patch.setattr(attention, "page_window", pages)


def _pages_from_one_too_late(patch: Patch) -> None:
    """A window's run of pages begins one page behind the oldest row that is seen."""
    real = attention.page_window

    def wrong(table: Any, base_B: Tensor, window: int | None, *args: Any) -> Any:
        return real(table, base_B if window is None else base_B + args[-1], window, *args)

    patch.setattr(attention, "page_window", wrong)


def _evicted_too_early(patch: Patch) -> None:
    """The sliding group's oldest page that is still seen has no page behind it any more."""
    launch = DeviceExecutor.launch

    def wrong(self: DeviceExecutor, step: Any) -> Any:
        for row in step.rows:
            first = int(self._rows.length[row]) - self.spec.window + 1
            if first > 0:
                self._rows.tables["sliding"][row, : first // self.page_size + 1] = 0
        return launch(self, step)

    patch.setattr(DeviceExecutor, "launch", wrong)


def _page_of_two_owners(patch: Patch) -> None:
    """A page is given out again while its owner still runs, and no count says so."""
    allocate = PageAllocator.allocate

    def wrong(self: PageAllocator, count: int) -> tuple[int, ...]:
        pages = allocate(self, count)
        before = getattr(self, "_again", pages[:1])
        self._again = pages[:1]  # type: ignore[attr-defined]
        return (*before, *pages[1:])

    patch.setattr(PageAllocator, "allocate", wrong)
    patch.setattr(PageAllocator, "check", lambda self, holders=None: None)
    patch.setattr(PageAllocator, "_require_owned", lambda self, page, verb: None)
    patch.setattr(PageAllocator, "register", lambda self, page, key: False)


def _compaction_without_the_last_row(patch: Patch) -> None:
    compact = iteration._compact

    def wrong(cache: Any, tables: Any, length_B: Any, path_BK: Any, accepted_B: Tensor) -> None:
        compact(cache, tables, length_B, path_BK, (accepted_B - 1).clamp(min=0))

    patch.setattr(iteration, "_compact", wrong)


def _compaction_of_one_layer(patch: Patch) -> None:
    def wrong(self: Pool, source_M: Tensor, destination_M: Tensor) -> None:
        self.rows[0].index_copy_(0, destination_M, self.rows[0].index_select(0, source_M))

    patch.setattr(Pool, "copy", wrong)


def _tree_rows_as_a_chain(patch: Patch) -> None:
    """Nodes stand at the positions of their places, not of their depths (speculation.md 1.5)."""
    init = attention.TreeRows.__init__

    def wrong(self: Any, *, depth_BN: Tensor, ancestors_BN: Tensor) -> None:
        init(self, depth_BN=torch.arange(depth_BN.shape[1]).expand_as(depth_BN), ancestors_BN=ancestors_BN)

    patch.setattr(attention.TreeRows, "__init__", wrong)


def _siblings_seen(patch: Patch) -> None:
    """A node sees the node before it, ancestor or not."""
    init = attention.TreeRows.__init__

    def wrong(self: Any, *, depth_BN: Tensor, ancestors_BN: Tensor) -> None:
        init(self, depth_BN=depth_BN, ancestors_BN=ancestors_BN | (ancestors_BN >> 1))

    patch.setattr(attention.TreeRows, "__init__", wrong)


def _draft_sees_a_row_too_many(patch: Patch) -> None:
    """The row above the frost line, left by a rejected draft (gemma4.md 3.2)."""
    _frozen(patch, 1, -1)


def _draft_sees_a_row_too_few(patch: Patch) -> None:
    _frozen(patch, -1, 1)


def _draft_position_off_by_one(patch: Patch) -> None:
    _frozen(patch, 0, -1)


def _frozen(patch: Patch, rows: int, offset: int) -> None:
    init = FrozenContext.__init__

    def wrong(self: FrozenContext, *args: Any, **rest: Any) -> None:
        change = {"length_B": rest["length_B"] + rows, "offset": rest["offset"] + offset}
        init(self, *args, **(rest | change))

    patch.setattr(FrozenContext, "__init__", wrong)


def _hidden_of_a_neighbour(patch: Patch) -> None:
    """The seed hidden is another request's (reported.md 36)."""
    seed = Rows.seed

    def wrong(self: Rows, rows_B: Any, length_B: Any, bonus_B: Any, hidden_BD: Tensor) -> None:
        seed(self, rows_B, length_B, bonus_B, hidden_BD.roll(1, dims=0))

    patch.setattr(Rows, "seed", wrong)


def _draft_noise_of_the_next_position(patch: Patch) -> None:
    call = drafting._Drafter.__call__
    patch.setattr(drafting._Drafter, "__call__", lambda self, depth, *args: call(self, depth + 1, *args))


def _own_depth_ignored(patch: Patch) -> None:
    walk = iteration.accept_walk
    patch.setattr(
        iteration,
        "accept_walk",
        lambda tree, choice, cap, steps: walk(tree, choice, torch.full_like(cap, steps), steps),
    )


def _seed_of_a_neighbour(patch: Patch) -> None:
    """Nodes of one request are sampled with the parameters of the next."""
    repeat = SamplingRows.repeat

    def wrong(self: SamplingRows, n: int) -> SamplingRows:
        found = repeat(self, n)
        return SamplingRows(**{name: value.roll(1) for name, value in vars(found).items()})

    patch.setattr(SamplingRows, "repeat", wrong)


def _stale_bonus(patch: Patch) -> None:
    """An iteration goes on from the bonus of the one before the last."""
    seed = Rows.seed

    def wrong(self: Rows, rows_B: Tensor, length_B: Tensor, bonus_B: Tensor, hidden_BD: Tensor) -> None:
        before = self.bonus.index_select(0, rows_B)
        seed(self, rows_B, length_B, torch.where(length_B % 5 == 0, before, bonus_B), hidden_BD)

    patch.setattr(Rows, "seed", wrong)


def _no_scrub(patch: Patch) -> None:
    """What a failed request left reaches the next owner of its pages."""
    patch.setattr(DeviceExecutor, "_scrub", lambda self, rows: None)


def _counted_twice(patch: Patch) -> None:
    accept = Request.accept_run

    def wrong(self: Request, run: Sequence[int], *, drafted: int, **rest: Any) -> int:
        kept = accept(self, run, drafted=drafted, **rest)
        if kept > 2:
            self.counter.record(drafted=drafted, committed=len(run), kept=kept)
        return kept

    patch.setattr(Request, "accept_run", wrong)


def _late_run_kept(patch: Patch) -> None:
    """A request goes on with the run that came after its end."""
    update = Scheduler.update

    def wrong(self: Scheduler, batch: Any, result: Any) -> list[Request]:
        for run in result.runs:
            request = batch.requests[run.row]
            if request.is_finished and run.finite:
                request.output_ids.extend(run.tokens)
        return update(self, batch, result)

    patch.setattr(Scheduler, "update", wrong)


def _penalties_counted_once_a_step(patch: Patch) -> None:
    """Of a run only the first token is counted (reported.md 19)."""
    count = RuleState.count

    def wrong(self: RuleState, rows_B: Tensor, token_BT: Tensor, counts_BT: Tensor) -> None:
        count(self, rows_B, token_BT[:, :1], counts_BT[:, :1])

    patch.setattr(RuleState, "count", wrong)


def _penalties_without_the_path(patch: Patch) -> None:
    """Nodes are penalised for what the request has emitted, not for what stands above them in the tree."""
    patch.setattr(iteration, "paths_of", lambda tree: None)


def _resumed_without_counts(patch: Patch) -> None:
    patch.setattr(batch, "resumed", lambda rules, output_ids: rules)


def _resumed_with_an_old_bonus(patch: Patch) -> None:
    """A resumed request is seeded with the token before its last one."""
    chunk = scheduler.next_chunk

    def wrong(request: Request, length: int) -> PrefillChunk:
        found = chunk(request, length)
        return found if found.bonus is None else replace(found, bonus=[-1, *request.output_ids][-2])

    patch.setattr(scheduler, "next_chunk", wrong)


def _evicted_by_what_is_in_flight(patch: Patch) -> None:
    """Pages go that the step in flight may still read: eviction looks at the largest length there can be."""
    evict = Reservations.evict
    patch.setattr(Reservations, "evict", lambda self, stay, committed: evict(self, stay, committed + stay.due_most + 1))


def _results_of_a_former_stay(patch: Patch) -> None:
    """A preempted request takes what was in flight for it."""
    patch.setattr(batch.Batch, "current", lambda self, row: self.requests[row])


def _samples_of_one_seed(patch: Patch) -> None:
    patch.setattr(engine, "sample_seed", lambda seed, index: seed)


def _logprobs_of_the_neighbour(patch: Patch) -> None:
    """Log-probabilities of a run are those of the nodes before its own."""
    score = iteration.score_tokens
    patch.setattr(iteration, "score_tokens", lambda logits, *args: score(logits.roll(1, dims=0), *args))


def _cached_pages_of_equal_tokens(patch: Patch) -> None:
    """A page is found by its own tokens, whatever came before them."""

    def wrong(self: PageKey, tokens: Sequence[int]) -> PageKey:
        return PageKey(PageKey.root(self.salt), tuple(tokens), self.salt, digest(bytes(tokens)))

    patch.setattr(PageKey, "child", wrong)


def _cached_with_the_bonus(patch: Patch) -> None:
    """A page is found as soon as all its tokens are known: the last one's row, the bonus token's, is not written."""
    keep = Reuse.keep

    def wrong(self: Reuse, request: Request, rows: int) -> None:
        there_are = self._page_size * len(request.on_device.tables["full"])
        keep(self, request, min(rows + 1, request.known, there_are))

    patch.setattr(Reuse, "keep", wrong)


def _hit_without_its_window(patch: Patch) -> None:
    """A hit takes one page too few of the sliding group."""
    first = PrefixCache._first_needed
    patch.setattr(PrefixCache, "_first_needed", lambda self, count: min(count, first(self, count) + 1))


def _hit_of_another_salt(patch: Patch) -> None:
    root = PageKey.root
    patch.setattr(PageKey, "root", lambda salt: root(None))


def _freed_while_in_flight(patch: Patch) -> None:
    """What a request held is free when it leaves, while a launched step still writes to it."""

    leave = Admission.leave

    def wrong(self: Admission, request: Request) -> None:
        if request.finish is not None and request.finish.reason == "error":
            leave(self, request)
        else:
            self._release(request.leave())

    patch.setattr(Admission, "leave", wrong)


def _tail_page_not_copied(patch: Patch) -> None:
    """A sample goes on in a page of its own that the prompt's last rows are not in."""
    patch.setattr(Stay, "take_copies", lambda self: ())


def _tail_page_shared(patch: Patch) -> None:
    """A sample goes on in the very page that sample 0 goes on in."""

    def wrong(self: Reservations, stay: Stay, sources: dict[Group, int]) -> None:
        for group, page in sources.items():
            self.allocators[group].retain((page,))
            stay.writes.append(TableWrite(row=stay.row, group=group, start=len(stay.tables[group]), pages=(page,)))
            stay.tables[group].append(page)

    patch.setattr(Reservations, "copy_tail", wrong)


FAULTS: dict[str, Callable[[Patch], None]] = {
    name.removeprefix("_").replace("_", "-"): fault
    for name, fault in list(globals().items())
    if name.startswith("_") and getattr(fault, "__module__", None) == __name__
    if name not in ("_tables_for", "_window", "_frozen")
}
