"""A device side in plain Python: real page tables, no model. Its tokens are a function of (seed, position, history).

Every KV row carries its position, its token and a digest of everything before it, and every page its writer and its
readers. Each step reads what attention would, all rows of the full group and the window of the sliding one, and
compares with what the request must have, so a wrong page, a page of another row, a stale or an evicted row gives an
assertion at once. Runs are as long as `accept` says.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from frostline.speculative.plan import Plan
from frostline.speculative.step import (
    PageCopy,
    PrefillChunk,
    RowInit,
    RunResult,
    SeedResult,
    Step,
    StepResult,
    TableWrite,
)
from frostline.types import GROUPS, Group

NextToken = Callable[[int, int, Sequence[int]], int]


def hashed(choices: Sequence[int]) -> NextToken:
    """Each token depends on the seed, the position and everything before it."""

    def next_token(seed: int, position: int, history: Sequence[int]) -> int:
        return choices[random.Random(hash((seed, position, *history))).randrange(len(choices))]

    return next_token


def scripted(tokens: Sequence[int], prompt_len: int) -> NextToken:
    """Output token i is `tokens[i]`, the last one for ever."""
    return lambda seed, position, history: tokens[min(position - prompt_len, len(tokens) - 1)]


@dataclass(kw_only=True)
class Row:
    """hit: rows that its first chunk finds in place. tokens: what its KV must hold; digests: each with all before."""

    init: RowInit
    owner: int
    hit: int
    tables: dict[Group, list[int]] = field(default_factory=lambda: {group: [] for group in GROUPS})
    committed: int = 0
    bonus: int | None = None
    tokens: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    def know(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            self.digests.append(hash((self.digests[-1] if self.digests else 0, token)))


@dataclass(kw_only=True)
class Page:
    """rows: (position, token, digest) by slot; what is missing was never written since the page was given out."""

    writer: int
    readers: set[int]
    rows: dict[int, tuple[int, int, int]] = field(default_factory=dict)


Place = tuple[Group, int]


class FakeExecutor:
    """accept: given the most drafts that may be accepted, how many are.

    nan: (seed, position) pairs that fail. nan_token: whoever has it in a prompt fails.
    """

    def __init__(
        self,
        next_token: NextToken,
        *,
        accept: Callable[[int], int] = lambda most: most,
        nan: frozenset[tuple[int, int]] = frozenset(),
        nan_token: int | None = None,
        num_rows: int = 5,
        page_size: int = 4,
        num_pages: Mapping[Group, int] | None = None,
        window: int = 24,
        max_context: int = 64,
        verify_width: int = 5,
    ) -> None:
        self.num_rows, self.page_size, self.max_context = num_rows, page_size, max_context
        self.window, self.verify_width = window, verify_width
        self.num_pages: Mapping[Group, int] = num_pages or {"sliding": 200, "full": 200}
        self.next_token, self.accept, self.nan, self.nan_token = next_token, accept, nan, nan_token
        self.steps: list[Step] = []
        self._rows: dict[int, Row] = {}
        self._owners = 0
        self._pages: dict[Place, Page] = {}
        self._spoiled: set[Place] = set()

    def launch(self, step: Step) -> StepResult:
        self.steps.append(step)
        self._check_step(step)
        for scrub in step.scrub:
            for group in GROUPS:
                for page in scrub.pages[group]:
                    self._spoiled.discard((group, page))
                    # Nobody has written to it when the step that gave it away was lost.
                    if (group, page) in self._pages:
                        self._pages[group, page].rows.clear()
        first = {chunk.row: chunk.start for chunk in step.prefill}
        for init in step.inits:
            self._admit(init, hit=first[init.row])
        for write in step.tables:
            self._write_table(write)
        for copy in step.copies:
            self._copy(copy)
        # All read before any writes: no chunk may count on another one of its step.
        for chunk in step.prefill:
            self._read_before(chunk)
        seeds = [seed for chunk in step.prefill for seed in self._prefill(chunk)]
        self._check_plan(step)
        return StepResult(seeds=tuple(seeds), runs=tuple(self._iterate(row, step.plan) for row in step.rows))

    def collect(self, flight: StepResult) -> StepResult:
        return flight

    def _check_step(self, step: Step) -> None:
        prefilling = [chunk.row for chunk in step.prefill]
        touched = [*prefilling, *step.rows]
        assert touched, "an empty step"
        assert len(set(touched)) == len(touched), "a row twice in one step"
        assert all(0 < row < self.num_rows for row in touched), "a row that is padding or out of range"
        assert {init.row for init in step.inits} <= set(prefilling), "admitted without a first chunk"

    def _check_plan(self, step: Step) -> None:
        plan, rows = step.plan, [self._rows[row] for row in step.rows]
        seeded = [self._rows[chunk.row] for chunk in step.prefill if chunk.last]
        assert plan.num_steps <= max((row.init.depth for row in rows), default=0)
        assert plan.num_steps + 1 <= plan.verify_width <= self.verify_width
        assert plan.topk > 1 or plan.verify_width == plan.num_steps + 1
        assert plan.num_steps > 0 or (plan.topk, plan.verify_width) == (1, 1)
        assert plan.sampled or not any(row.init.temperature for row in (*rows, *seeded))
        assert all(step.kv_bound >= row.committed + plan.verify_width for row in rows)

    def _admit(self, init: RowInit, *, hit: int) -> None:
        assert init.prompt_len > 0 and init.top_k >= 0
        self._owners += 1
        self._rows[init.row] = Row(init=init, owner=self._owners, hit=hit, committed=hit)

    def _write_table(self, write: TableWrite) -> None:
        row = self._rows[write.row]
        table = row.tables[write.group]
        assert write.start <= len(table), "a hole in the page table"
        assert write.pages
        for index, page in enumerate(write.pages, start=write.start):
            assert 0 <= page < self.num_pages[write.group], f"page {page} does not exist"
            assert page or write.group == "sliding", "evicted from the full group"
            if index < len(table):
                assert page == 0 and table[index], "an entry that is overwritten"
                table[index] = 0
                continue
            table.append(page)
            if page:
                self._give((write.group, page), row, shared=(index + 1) * self.page_size <= row.hit)

    def _give(self, place: Place, row: Row, *, shared: bool) -> None:
        if shared:
            self._pages[place].readers.add(row.owner)
        else:
            assert place not in self._spoiled, f"{place} still holds a failed request's NaN"
            self._pages[place] = Page(writer=row.owner, readers={row.owner})

    def _copy(self, copy: PageCopy) -> None:
        assert 0 < copy.rows < self.page_size and copy.source != copy.destination
        source, destination = (self._pages[copy.group, page] for page in (copy.source, copy.destination))
        assert not destination.rows, "a copy over rows in use"
        destination.rows.update({slot: source.rows[slot] for slot in range(copy.rows)})

    def _read_before(self, chunk: PrefillChunk) -> None:
        row = self._rows[chunk.row]
        assert chunk.tokens and row.bonus is None and chunk.start == row.committed
        if not row.tokens:
            row.know(self._found(row))
        # The first query of the chunk sees the oldest rows.
        self._attend(row, oldest=chunk.start - self.window + 1)

    def _prefill(self, chunk: PrefillChunk) -> list[SeedResult]:
        row = self._rows[chunk.row]
        row.know(chunk.tokens)
        for position in range(chunk.start, len(row.tokens)):
            self._write(row, position)
        row.committed = len(row.tokens)
        assert chunk.last or chunk.bonus is None
        if chunk.last:
            more = row.committed - row.init.prompt_len
            assert more >= 0 and (more == 0 or chunk.bonus is not None), "seeded past its prompt without its bonus"
        poisoned = self.nan_token in row.tokens[: row.init.prompt_len]
        poisoned |= any((row.init.seed, position) in self.nan for position in range(chunk.start, row.committed))
        if poisoned:
            self._spoil(row, chunk.start)
        if not chunk.last:
            return [SeedResult(row=chunk.row, token=0, finite=False)] if poisoned else []
        token, finite = self._choose(row, row.tokens, chunk.start)
        row.bonus = token if chunk.bonus is None else chunk.bonus
        return [SeedResult(row=chunk.row, token=row.bonus, finite=finite and not poisoned)]

    def _iterate(self, number: int, plan: Plan) -> RunResult:
        row = self._rows[number]
        assert row.bonus is not None, "iterated before its seed"
        offered = min(plan.num_steps, row.init.depth)
        accepted = self.accept(offered)
        # Drafting reads as from P - 1, one row further back than verify.
        self._attend(row, oldest=row.committed - self.window)
        history, run, all_finite = [*row.tokens, row.bonus], [], True
        for _ in range(accepted + 1):
            token, finite = self._choose(row, history, row.committed)
            all_finite &= finite
            run.append(token)
            history.append(token)
        # Verify writes the bonus and the drafts, rejected ones included; rows past the new P are never read.
        before = row.committed
        row.know([row.bonus, *run[:accepted]])
        for position in range(before, before + plan.verify_width):
            self._write(row, position)
        row.committed += len(run)
        row.bonus = run[-1]
        return RunResult(row=number, tokens=tuple(run), drafted=offered, finite=all_finite)

    def _choose(self, row: Row, history: Sequence[int], written: int) -> tuple[int, bool]:
        """written: first KV row that the forward writes, the first that can hold its NaN."""
        seed, position = row.init.seed, len(history)
        finite = (seed, position) not in self.nan
        if not finite:
            self._spoil(row, written)
        return self.next_token(seed, position, history), finite

    def _spoil(self, row: Row, start: int) -> None:
        index = start // self.page_size
        self._spoiled |= {(group, page) for group in GROUPS for page in row.tables[group][index:] if page}

    def _found(self, row: Row) -> list[int]:
        """Tokens of the rows that the row found in place; they are its own, whoever wrote them."""
        return [self._page(row, "full", at).rows[at % self.page_size][1] for at in range(row.hit)]

    def _attend(self, row: Row, *, oldest: int) -> None:
        """Read what attention reads: rows below the frost line, those of the sliding group from `oldest` on."""
        for group in GROUPS:
            for position in range(max(0, oldest) if group == "sliding" else 0, row.committed):
                found = self._page(row, group, position).rows.get(position % self.page_size)
                expected = position, row.tokens[position], row.digests[position]
                assert found == expected, f"a stale or foreign {group} row at {position}: {found}, not {expected}"

    def _page(self, row: Row, group: Group, position: int) -> Page:
        index = position // self.page_size
        assert index < len(row.tables[group]), f"no {group} page for position {position}"
        number = row.tables[group][index]
        assert number, f"position {position} of the {group} group is evicted"
        page = self._pages[group, number]
        assert row.owner in page.readers, f"{group} page {number} belongs to another request now"
        return page

    def _write(self, row: Row, position: int) -> None:
        """Store the row at `position`; past the known tokens it is a rejected draft's."""
        known = position < len(row.tokens)
        entry = (position, row.tokens[position], row.digests[position]) if known else (position, -1, 0)
        for group in GROUPS:
            page = self._page(row, group, position)
            assert page.writer == row.owner, f"a write to a {group} page that others read"
            page.rows[position % self.page_size] = entry


class Lagging:
    """A fake device side that does a step's work as late as it may: when its result is collected, in launch order.

    A step that lacked something which only an earlier result tells would show; so would one that is changed afterwards.
    """

    def __init__(self, inner: FakeExecutor) -> None:
        self._inner = inner
        self.num_rows, self.page_size, self.num_pages = inner.num_rows, inner.page_size, inner.num_pages
        self.window, self.max_context, self.verify_width = inner.window, inner.max_context, inner.verify_width
        self._queue: deque[Step] = deque()

    def launch(self, step: Step) -> Step:
        self._queue.append(step)
        assert len(self._queue) <= 2, "more than one step ahead"
        return step

    def collect(self, flight: Step) -> StepResult:
        assert self._queue.popleft() is flight, "collected out of order"
        return self._inner.launch(flight)
