"""500 random mixes on a fake pair and the real device side: overlap, sync and plain decoding give the same."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mix import mix
from tests.fuzz.oracle import Played, check

BLOCK = 50


def check_block(first: int) -> list[Played]:
    return [played for seed in range(first, first + BLOCK) for played in check(mix(seed))]


@pytest.mark.parametrize("block", range(10))
def test_mixes_overlap_run_and_decode_alike(block: int) -> None:
    played = check_block(BLOCK * block)
    runs = [run for one in played for track in one.tracks for run in track.runs]
    accepted = Counter(len(run.result.tokens) - 1 for run in runs)
    # A tame block would prove little.
    assert sum(accepted.values()) > 300 and min(accepted[n] for n in range(4)) > 3
    assert sum(one.stats.late_runs for one in played) > 3
    assert sum(one.evicted for one in played) > 100
    assert sum(one.stats.preemptions for one in played) > 0
    reasons = Counter(output.outputs[0].finish_reason for one in played for output in one.outputs)
    assert min(reasons[reason] for reason in ("stop", "length", "abort")) > 3


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_any_mix_overlaps_runs_and_decodes_alike(seed: int) -> None:
    check(mix(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_prove_mixes(block: int) -> None:
    check_block(100_000 + BLOCK * block)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_prove_any_mix(seed: int) -> None:
    check(mix(seed))
