from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.engine.counters import SpecCounter
from frostline.types import SpecStats

RUN = st.integers(0, 6).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(1, drafted + 1)))


def test_one_run_after_another() -> None:
    counter = SpecCounter()
    assert counter.freeze() == SpecStats() and counter.freeze().accept_length == 0.0
    counter.record(drafted=4, committed=5, kept=5)
    counter.record(drafted=4, committed=1, kept=1)
    counter.record(drafted=0, committed=1, kept=1)
    counter.record(drafted=2, committed=2, kept=2)
    stats = counter.freeze()
    assert stats.iterations == 4 and stats.run_lengths == (5, 1, 1, 2)
    assert stats.drafted_per_depth == (3, 3, 2, 2) and stats.drafted == 10
    assert stats.accepted_per_depth == (2, 1, 1, 1)
    assert stats.accept_length == 9 / 4


def test_a_cut_run_counts_up_to_its_cut_in_both() -> None:
    counter = SpecCounter()
    counter.record(drafted=4, committed=5, kept=2)
    stats = counter.freeze()
    assert stats.drafted_per_depth == stats.accepted_per_depth == (1, 1)
    assert stats.run_lengths == (2,)


@given(st.lists(RUN, max_size=20), st.booleans())
def test_reported_37_counters_reconcile_with_the_tokens(runs: list[tuple[int, int]], cut: bool) -> None:
    counter, kept_tokens = SpecCounter(), 0
    cut_inside = False
    for number, (drafted, committed) in enumerate(runs, start=1):
        cut_inside = cut and number == len(runs) and committed > 1
        kept = committed - 1 if cut_inside else committed
        counter.record(drafted=drafted, committed=committed, kept=kept)
        kept_tokens += kept
    stats = counter.freeze()
    assert sum(stats.run_lengths) == kept_tokens
    assert kept_tokens == stats.iterations + sum(stats.accepted_per_depth) - cut_inside
    assert stats.drafted == sum(stats.drafted_per_depth) <= sum(drafted for drafted, _ in runs)
    assert len(stats.accepted_per_depth) == len(stats.drafted_per_depth)
    pairs = list(zip(stats.accepted_per_depth, stats.drafted_per_depth, strict=True))
    assert all(accepted <= drafted for accepted, drafted in pairs)
    assert list(stats.drafted_per_depth) == sorted(stats.drafted_per_depth, reverse=True)


@pytest.mark.parametrize(("drafted", "committed", "kept"), [(2, 4, 4), (2, 0, 0), (2, 2, 3), (2, 2, 0)])
def test_impossible_runs_are_our_own_mistake(drafted: int, committed: int, kept: int) -> None:
    with pytest.raises(AssertionError):
        SpecCounter().record(drafted=drafted, committed=committed, kept=kept)
