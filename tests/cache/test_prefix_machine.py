"""Any life of requests over both groups' pages, beside a model that remembers what every page really holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from frostline.cache import keys
from frostline.cache.pages import PageAllocator
from frostline.cache.prefix import PrefixCache, PrefixChain
from frostline.types import GROUPS, Group

Prefix = tuple[str | None, tuple[int, ...]]
SALTS = (None, "", "x")


@dataclass(kw_only=True, eq=False)
class Running:
    """A request as a scheduler would keep it. computed: rows that its pages hold; tokens may be ahead of it."""

    salt: str | None
    tokens: list[int]
    chain: PrefixChain
    tables: dict[Group, list[int]]
    computed: int = 0

    def prefix(self, rows: int) -> Prefix:
        return self.salt, tuple(self.tokens[:rows])


class Requests(RuleBasedStateMachine):
    """content: what each page holds, as all tokens up to its end. findable: the model of the index, by prefix."""

    @initialize(size=st.integers(1, 3), window=st.integers(1, 9), sliding=st.integers(4, 12), full=st.integers(4, 12))
    def start(self, size: int, window: int, sliding: int, full: int) -> None:
        self.size, self.window = size, window
        self.pages = {"sliding": PageAllocator(sliding, name="sliding"), "full": PageAllocator(full, name="full")}
        self.cache = PrefixCache(self.pages, page_size=size, window=window)
        self.running: list[Running] = []
        self.content: dict[tuple[Group, int], Prefix] = {}
        self.findable: dict[Group, dict[Prefix, int]] = {"sliding": {}, "full": {}}

    @rule(salt=st.sampled_from(SALTS), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), reuse=st.booleans())
    def admit(self, salt: str | None, tokens: list[int], reuse: bool) -> None:
        chain = PrefixChain(self.size, salt=salt)
        chain.extend(tokens)
        request = Running(salt=salt, tokens=list(tokens), chain=chain, tables={"sliding": [], "full": []})
        self._enter(request, reuse=reuse)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def run(self, data: st.DataObject, tokens: list[int]) -> None:
        """A run of tokens: pages grow, rows are computed, those final are registered, old ones slide out."""
        request = data.draw(st.sampled_from(self.running))
        if self._grow(request, len(request.tokens) + len(tokens)):
            request.tokens += tokens
            request.chain.extend(tokens)
            self._compute(request, len(request.tokens))
            if data.draw(st.booleans()):
                self._register(request, request.computed - data.draw(st.integers(0, request.computed)))
            self._slide(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans(), spoiled=st.booleans())
    def leave(self, data: st.DataObject, again: bool, spoiled: bool) -> None:
        """It ends, is preempted and comes back, or fails on bad numbers."""
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        for group in GROUPS:
            held = [page for page in request.tables[group] if page]
            own = [page for page in held if spoiled and self.pages[group].holders(page) == 1]
            self.pages[group].forget(own)
            self._lose(group, own)
            self.pages[group].release(held)
            request.tables[group] = []
        request.computed = 0
        if again and not spoiled:
            self._enter(request, reuse=True)

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 12))
    def pressure(self, group: Group, count: int) -> None:
        """Others take pages for a moment, which evicts cached ones."""
        pages = self.pages[group]
        taken = pages.allocate(min(count, pages.num_available))
        self._lose(group, taken)
        pages.release(taken)

    def _enter(self, request: Running, *, reuse: bool) -> None:
        rows, expected = len(request.tokens), self._longest(request)
        if reuse:
            hit = self.cache.match(request.chain, rows)
            assert hit.rows == expected < rows
            request.tables = {group: list(hit.pages[group]) for group in GROUPS}
            request.computed = hit.rows
            for group in GROUPS:
                assert len(hit.pages[group]) * self.size == hit.rows
                self._check_rows(request, group)
        else:
            request.chain.registered = 0
        if self._grow(request, rows):
            self._compute(request, rows)
            self._register(request, rows)
            self._slide(request)
            self.running.append(request)
        elif reuse:
            self.cache.give_back(hit)

    def _grow(self, request: Running, rows: int) -> bool:
        need = -(-rows // self.size) - len(request.tables["full"])
        if any(self.pages[group].num_available < need for group in GROUPS):
            return False
        for group in GROUPS:
            taken = self.pages[group].allocate(max(need, 0))
            self._lose(group, taken)
            request.tables[group] += taken
        return True

    def _compute(self, request: Running, rows: int) -> None:
        for group in GROUPS:
            for index in range(request.computed // self.size, -(-rows // self.size)):
                page = request.tables[group][index]
                assert page and (group, page) not in {(g, p) for g in GROUPS for p in self.findable[g].values()}
                self.content[group, page] = request.prefix(min(rows, (index + 1) * self.size))
        request.computed = rows

    def _register(self, request: Running, committed: int) -> None:
        first = request.chain.registered
        self.cache.register(request.chain, committed, request.tables)
        for group in GROUPS:
            for index in range(first, committed // self.size):
                page = request.tables[group][index]
                if page and page not in self.findable[group].values():
                    self.findable[group].setdefault(request.prefix((index + 1) * self.size), page)

    def _slide(self, request: Running) -> None:
        table = request.tables["sliding"]
        over = [i for i, page in enumerate(table) if page and (i + 1) * self.size - 1 < request.computed - self.window]
        if all(index < request.chain.registered for index in over):
            self.pages["sliding"].release([table[index] for index in over])
            for index in over:
                table[index] = 0
        for group in GROUPS:
            self._check_rows(request, group)

    def _check_rows(self, request: Running, group: Group) -> None:
        """Every row that a layer of this group may read from here on is there and is this request's own prefix."""
        first = 0 if group == "full" else max(0, request.computed - self.window + 1)
        for row in range(first, request.computed):
            salt, tokens = self.content[group, request.tables[group][row // self.size]]
            assert (salt, tokens[: row + 1]) == request.prefix(row + 1)

    def _longest(self, request: Running) -> int:
        best = 0
        for rows in range(self.size, len(request.tokens), self.size):
            needed = {"full": range(rows), "sliding": range(max(0, rows - self.window + 1), rows)}
            ends = {(group, (row // self.size + 1) * self.size) for group in GROUPS for row in needed[group]}
            if all(request.prefix(end) in self.findable[group] for group, end in ends):
                best = rows
        return best

    def _lose(self, group: Group, pages: list[int] | tuple[int, ...]) -> None:
        index = self.findable[group]
        self.findable[group] = {prefix: page for prefix, page in index.items() if page not in pages}

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        for group in GROUPS if hasattr(self, "pages") else ():
            pages = self.pages[group]
            held = Counter(page for request in self.running for page in request.tables[group] if page)
            pages.check(held)
            assert pages.num_cached == len(set(self.findable[group].values()) - set(held))


@pytest.mark.parametrize("colliding", [False, True])
def test_requests_of_every_life_get_only_their_own_prefix(colliding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """colliding: with no digest at all, every key collides with every other."""
    if colliding:
        monkeypatch.setattr(keys, "digest", lambda data: b"")
    run_state_machine_as_test(Requests, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
