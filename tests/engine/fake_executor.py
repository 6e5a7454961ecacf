"""A device side in plain Python: real page tables, no model. Its tokens are a function of (seed, position, history).

History is read back through the row's pages, in both layer groups, and every KV row carries (owner, position, token),
so a wrong page, a page of another row or a stale row gives an assertion at once. Runs are as long as `accept` says.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from frostline.speculative.plan import Plan
from frostline.speculative.step import (
    PageGrowth,
    PrefillChunk,
    RowInit,
    RunResult,
    SeedResult,
    Step,
    StepResult,
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
    init: RowInit
    owner: int
    tables: dict[Group, list[int]] = field(default_factory=lambda: {group: [] for group in GROUPS})
    committed: int = 0
    bonus: int | None = None


class FakeExecutor:
    """accept: given the most drafts that may be accepted, how many are. nan: (seed, position) pairs that fail."""

    def __init__(
        self,
        next_token: NextToken,
        *,
        accept: Callable[[int], int] = lambda most: most,
        nan: frozenset[tuple[int, int]] = frozenset(),
        num_rows: int = 5,
        page_size: int = 4,
        num_pages: Mapping[Group, int] | None = None,
        max_context: int = 64,
        verify_width: int = 5,
    ) -> None:
        self.num_rows, self.page_size, self.max_context = num_rows, page_size, max_context
        self.verify_width = verify_width
        self.num_pages: Mapping[Group, int] = num_pages or {"sliding": 200, "full": 200}
        self.next_token, self.accept, self.nan = next_token, accept, nan
        self.steps: list[Step] = []
        self._rows: dict[int, Row] = {}
        self._owners = 0
        self._page_owner: dict[tuple[Group, int], int] = {}
        self._kv: dict[tuple[Group, int, int], tuple[int, int, int]] = {}
        self._spoiled: set[tuple[Group, int]] = set()

    def launch(self, step: Step) -> StepResult:
        self.steps.append(step)
        self._check_step(step)
        for number in step.scrub:
            self._spoiled -= self._pages(self._rows[number])
        for init in step.inits:
            self._admit(init)
        for growth in step.growth:
            self._grow(growth)
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

    def _admit(self, init: RowInit) -> None:
        assert init.prompt_len > 0 and init.top_k >= 0
        self._owners += 1
        self._rows[init.row] = Row(init=init, owner=self._owners)

    def _grow(self, growth: PageGrowth) -> None:
        row = self._rows[growth.row]
        table = row.tables[growth.group]
        assert growth.start == len(table), "a hole in the page table"
        for page in growth.pages:
            assert 0 < page < self.num_pages[growth.group], f"page {page} is padding or does not exist"
            assert (growth.group, page) not in self._spoiled, f"page {page} still holds a failed request's NaN"
            self._page_owner[growth.group, page] = row.owner
        table.extend(growth.pages)

    def _prefill(self, chunk: PrefillChunk) -> list[SeedResult]:
        row = self._rows[chunk.row]
        assert chunk.tokens and row.bonus is None and chunk.start == row.committed
        for position, token in enumerate(chunk.tokens, start=chunk.start):
            self._write(row, position, token)
        row.committed += len(chunk.tokens)
        assert chunk.last == (row.committed == row.init.prompt_len)
        if not chunk.last:
            poisoned = any((row.init.seed, position) in self.nan for position in range(chunk.start, row.committed))
            self._spoiled |= self._pages(row) if poisoned else set()
            return [SeedResult(row=chunk.row, token=0, finite=False)] if poisoned else []
        row.bonus, finite = self._choose(row, self._history(row))
        return [SeedResult(row=chunk.row, token=row.bonus, finite=finite)]

    def _iterate(self, number: int, plan: Plan) -> RunResult:
        row = self._rows[number]
        assert row.bonus is not None, "iterated before its seed"
        offered = min(plan.num_steps, row.init.depth)
        accepted = self.accept(offered)
        history, run, all_finite = [*self._history(row), row.bonus], [], True
        for _ in range(accepted + 1):
            token, finite = self._choose(row, history)
            all_finite &= finite
            run.append(token)
            history.append(token)
        # Verify writes the bonus and the drafts, rejected ones included; rows past the new P are never read.
        nodes = [row.bonus, *run[:accepted], *[-1] * (plan.verify_width - 1 - accepted)]
        for position, token in enumerate(nodes, start=row.committed):
            self._write(row, position, token)
        row.committed += len(run)
        row.bonus = run[-1]
        return RunResult(row=number, tokens=tuple(run), drafted=offered, finite=all_finite)

    def _choose(self, row: Row, history: Sequence[int]) -> tuple[int, bool]:
        seed, position = row.init.seed, len(history)
        finite = (seed, position) not in self.nan
        if not finite:
            self._spoiled |= self._pages(row)
        return self.next_token(seed, position, history), finite

    def _history(self, row: Row) -> list[int]:
        return [self._read(row, position) for position in range(row.committed)]

    def _pages(self, row: Row) -> set[tuple[Group, int]]:
        return {(group, page) for group in GROUPS for page in row.tables[group]}

    def _slot(self, row: Row, group: Group, position: int) -> tuple[Group, int, int]:
        index, slot = divmod(position, self.page_size)
        assert index < len(row.tables[group]), f"no {group} page for position {position}"
        page = row.tables[group][index]
        assert self._page_owner[group, page] == row.owner, f"{group} page {page} belongs to another request now"
        return group, page, slot

    def _write(self, row: Row, position: int, token: int) -> None:
        for group in GROUPS:
            self._kv[self._slot(row, group, position)] = (row.owner, position, token)

    def _read(self, row: Row, position: int) -> int:
        found = {self._kv[self._slot(row, group, position)] for group in GROUPS}
        assert len(found) == 1, "the layer groups disagree"
        owner, at, token = found.pop()
        assert (owner, at) == (row.owner, position), "a stale or foreign KV row"
        return token


class Lagging:
    """A fake device side that does a step's work as late as it may: when its result is collected, in launch order.

    A step that lacked something which only an earlier result tells would show; so would one that is changed afterwards.
    """

    def __init__(self, inner: FakeExecutor) -> None:
        self._inner = inner
        self.num_rows, self.page_size, self.num_pages = inner.num_rows, inner.page_size, inner.num_pages
        self.max_context, self.verify_width = inner.max_context, inner.verify_width
        self._queue: deque[Step] = deque()

    def launch(self, step: Step) -> Step:
        self._queue.append(step)
        assert len(self._queue) <= 2, "more than one step ahead"
        return step

    def collect(self, flight: Step) -> StepResult:
        assert self._queue.popleft() is flight, "collected out of order"
        return self._inner.launch(flight)
