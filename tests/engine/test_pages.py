from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frostline.cache.pages import PageAccountingError, PageAllocator


def test_the_padding_page_is_never_given_out() -> None:
    pages = PageAllocator(4, name="full")
    assert sorted(pages.allocate(3)) == [1, 2, 3]
    assert (pages.total, pages.num_free, pages.num_owned) == (3, 0, 3)
    with pytest.raises(PageAccountingError, match="asked for 1, 0 of 3 free"):
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


@pytest.mark.parametrize("page", [0, -1, 8])
def test_pages_that_are_nobodys(page: int) -> None:
    pages = PageAllocator(8, name="full")
    for action in (pages.release, pages.retain):
        with pytest.raises(PageAccountingError):
            action([page])


def test_leaks_and_strangers_are_found_with_figures() -> None:
    pages = PageAllocator(8, name="full")
    held = pages.allocate(3)
    pages.check(dict.fromkeys(held, 1))
    with pytest.raises(PageAccountingError, match="3 owned, 2 held"):
        pages.check(dict.fromkeys(held[:2], 1))
    pages._free.pop()
    with pytest.raises(PageAccountingError, match="3 free \\+ 3 owned is not the total 7"):
        pages.check()


def test_a_pool_needs_a_page_beside_the_padding() -> None:
    with pytest.raises(PageAccountingError):
        PageAllocator(1, name="full")


class Holders(RuleBasedStateMachine):
    """Any order of taking, sharing and giving back keeps every page on one side only."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(12, name="full")
        self.held: list[int] = []

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        if count <= self.pages.num_free:
            taken = self.pages.allocate(count)
            assert not set(taken) & set(self.held)
            self.held += taken

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.pages.retain([page])
        self.held.append(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.held.remove(page)
        self.pages.release([page])

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        self.pages.check(Counter(self.held))
        assert self.pages.num_free == self.pages.total - len(set(self.held))


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
