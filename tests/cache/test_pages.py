"""Pages of one group: free, cached, owned, against a naive model of the three."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frostline.cache.keys import PageKey
from frostline.cache.pages import PageAccountingError, PageAllocator

ROOT = PageKey.root(None)


def key(name: int) -> PageKey:
    """A new object each time: keys are equal by what they stand for."""
    return PageKey.root(None).child((name,))


def states(pages: PageAllocator) -> tuple[int, int, int]:
    return pages.num_free, pages.num_cached, pages.num_owned


def test_the_padding_page_is_never_given_out() -> None:
    pages = PageAllocator(4, name="full")
    assert sorted(pages.allocate(3)) == [1, 2, 3]
    assert (pages.total, *states(pages)) == (3, 0, 0, 3)
    with pytest.raises(PageAccountingError, match="asked for 1, 0 of 3 free and 0 cached"):
        pages.allocate(1)


def test_reported_21_double_free_is_found() -> None:
    pages = PageAllocator(8, name="sliding")
    (page,) = pages.allocate(1)
    pages.release([page])
    with pytest.raises(PageAccountingError, match=f"sliding pages: page {page} was freed but has no owner; 7 of 7"):
        pages.release([page])
    first, second = pages.allocate(2)
    with pytest.raises(PageAccountingError):
        pages.release([first, second, first])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("page", [0, -1, 8, 3])
def test_pages_that_are_nobodys(page: int, cached: bool) -> None:
    pages = PageAllocator(8, name="full")
    if cached:
        held = pages.allocate(3)
        pages.register(held[0], key(1))
        pages.release(held)
    for action in (lambda: pages.release([page]), lambda: pages.register(page, key(2)), lambda: pages.retain([page])):
        with pytest.raises(PageAccountingError):
            action()
    pages.check({})


def test_leaks_and_strangers_are_found_with_figures() -> None:
    pages = PageAllocator(8, name="full")
    held = pages.allocate(3)
    pages.check(dict.fromkeys(held, 1))
    with pytest.raises(PageAccountingError, match="3 owned, 2 held"):
        pages.check(dict.fromkeys(held[:2], 1))
    with pytest.raises(PageAccountingError, match=f"differ on pages \\[{held[0]}\\]"):
        pages.check({**dict.fromkeys(held, 1), held[0]: 2})
    pages._free.pop()
    with pytest.raises(PageAccountingError, match="3 free \\+ 0 cached \\+ 3 owned is not the total 7"):
        pages.check()


def test_a_page_on_two_sides_or_an_index_that_lies_is_found() -> None:
    def three() -> PageAllocator:
        """1 is cached, 2 is owned and registered, 3 is free."""
        pages = PageAllocator(4, name="full")
        for page in pages.allocate(2):
            pages.register(page, key(page))
        pages.release([1])
        pages.check({2: 1})
        return pages

    def twice(pages: PageAllocator) -> None:
        pages._free.append(1)
        pages._counts[2] = 0

    def padding(pages: PageAllocator) -> None:
        pages._free.append(0)
        pages._counts[2] = 0

    def free_but_found(pages: PageAllocator) -> None:
        pages._free.append(1)
        pages._cached.clear()

    def cached_but_lost(pages: PageAllocator) -> None:
        del pages._index[pages._keys.pop(1)]

    def only_indexed(pages: PageAllocator) -> None:
        del pages._keys[2]

    def only_keyed(pages: PageAllocator) -> None:
        del pages._index[key(2)]

    def two_keys(pages: PageAllocator) -> None:
        pages._index[key(9)] = 2

    broken = (twice, padding, free_but_found, cached_but_lost, only_indexed, only_keyed, two_keys)
    for breaks in broken:
        pages = three()
        breaks(pages)
        with pytest.raises(PageAccountingError):
            pages.check()


def test_a_pool_needs_a_page_beside_the_padding() -> None:
    with pytest.raises(PageAccountingError):
        PageAllocator(1, name="full")


def test_a_registered_page_is_cached_when_its_last_holder_goes_and_comes_back() -> None:
    pages = PageAllocator(4, name="full")
    (page,) = pages.allocate(1)
    assert pages.find(key(7)) is None
    assert pages.register(page, key(7)) and pages.find(key(7)) == page
    pages.retain([page])
    pages.release([page])
    assert states(pages) == (2, 0, 1) and pages.holders(page) == 1
    pages.release([page])
    assert states(pages) == (2, 1, 0) and pages.holders(page) == 0 and pages.num_available == 3
    pages.retain([page])
    assert states(pages) == (2, 0, 1) and pages.find(key(7)) == page
    pages.check({page: 1})


def test_free_pages_go_first_then_the_least_recently_used() -> None:
    pages = PageAllocator(6, name="full")
    one, two, three, *rest = pages.allocate(5)
    for page in (one, two, three):
        pages.register(page, key(page))
        pages.release([page])
    pages.retain([one])
    pages.release([one])
    pages.release(rest)
    assert set(pages.allocate(2)) == set(rest) and pages.num_cached == 3
    assert pages.allocate(1) == (two,) and pages.find(key(two)) is None
    assert pages.allocate(2) == (three, one) and states(pages) == (0, 0, 5)


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    pages = PageAllocator(4, name="full")
    chain = pages.allocate(3)
    for index, page in enumerate(chain):
        pages.register(page, key(index))
    pages.release(chain)
    assert [pages.allocate(1)[0] for _ in chain] == list(reversed(chain))


def test_a_key_has_one_page_and_a_page_one_key() -> None:
    pages = PageAllocator(4, name="full")
    first, second = pages.allocate(2)
    assert pages.register(first, key(1)) and pages.register(first, key(1))
    assert not pages.register(second, key(1)) and pages.find(key(1)) == first
    with pytest.raises(PageAccountingError, match=f"page {first} holds .* was registered as"):
        pages.register(first, key(2))
    pages.release([second])
    assert states(pages) == (2, 0, 1)
    pages.check({first: 1})


def test_spoiled_pages_are_forgotten_wherever_they_are() -> None:
    pages = PageAllocator(6, name="full")
    cached, owned, plain, free = pages.allocate(4)
    for page in (cached, owned):
        pages.register(page, key(page))
    pages.release([cached])
    pages.release([free])
    pages.forget([cached, owned, plain, free, 0])
    assert pages.find(key(cached)) is None and pages.find(key(owned)) is None
    assert states(pages) == (3, 0, 2)
    pages.check({owned: 1, plain: 1})
    assert pages.register(owned, key(9)), "a new key, for new rows"


class Holders(RuleBasedStateMachine):
    """Any order of taking, sharing, registering, finding, forgetting and giving back, beside a model of plain lists."""

    TOTAL = 8

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(self.TOTAL + 1, name="full")
        self.held: list[int] = []
        self.keys: dict[int, int] = {}
        self.cached: list[int] = []

    @property
    def free(self) -> set[int]:
        return set(range(1, self.TOTAL + 1)) - set(self.held) - set(self.cached)

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        free = self.free
        if count > len(free) + len(self.cached):
            with pytest.raises(PageAccountingError):
                self.pages.allocate(count)
            return
        evicted = self.cached[: max(0, count - len(free))]
        taken = self.pages.allocate(count)
        assert len(set(taken)) == count and set(taken) <= free | set(evicted)
        assert not evicted or set(taken) == free | set(evicted)
        del self.cached[: len(evicted)]
        for page in evicted:
            del self.keys[page]
        self.held += taken

    @precondition(lambda self: self.held)
    @rule(data=st.data(), name=st.integers(0, 4))
    def register(self, data: st.DataObject, name: int) -> None:
        page = data.draw(st.sampled_from(sorted(set(self.held))))
        if self.keys.get(page, name) != name:
            with pytest.raises(PageAccountingError):
                self.pages.register(page, key(name))
            return
        taken = name in self.keys.values() and self.keys.get(page) != name
        assert self.pages.register(page, key(name)) is not taken
        if not taken:
            self.keys[page] = name

    @rule(name=st.integers(0, 4))
    def hit(self, name: int) -> None:
        page = self.pages.find(key(name))
        expected = [p for p, own in self.keys.items() if own == name]
        assert expected == ([] if page is None else [page])
        if page is not None:
            self.pages.retain([page])
            self.held.append(page)
            if page in self.cached:
                self.cached.remove(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        batch = data.draw(st.lists(st.sampled_from(sorted(set(self.held))), unique=True, max_size=4))
        self.pages.release(batch)
        for page in reversed(batch):
            self.held.remove(page)
            if page not in self.held and page in self.keys:
                self.cached.append(page)

    @rule(page=st.integers(0, TOTAL))
    def forget(self, page: int) -> None:
        self.pages.forget([page])
        self.keys.pop(page, None)
        if page in self.cached:
            self.cached.remove(page)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        self.pages.check(Counter(self.held))
        assert states(self.pages) == (len(self.free), len(self.cached), len(set(self.held)))
        assert all(self.pages.find(key(name)) == page for page, name in self.keys.items())


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
