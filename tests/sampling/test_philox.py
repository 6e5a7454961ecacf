"""Philox4x32-10: the published vectors, a from-scratch twin, and independence from how the tokens are listed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from frostline.kernels.philox import philox4x32, token_bits
from tests.sampling import reference

# Random123, tests/kat_vectors, "philox4x32 10": counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WORD = st.integers(0, 2**32 - 1)
SEED = st.integers(0, 2**63 - 1)


def evaluate(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    k0, k1 = (torch.tensor(word) for word in key)
    return tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1)))


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], output: tuple[int, ...]) -> None:
    assert evaluate(counter, key) == output
    assert reference.philox(counter, key) == output


@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD))
def test_equals_the_algorithm_in_unbounded_integers(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    assert evaluate(counter, key) == reference.philox(counter, key)


@given(seed=SEED, position=st.integers(0, 2**40), start=st.integers(0, 2**20), count=st.integers(1, 11))
def test_bits_are_a_function_of_seed_position_and_token(seed: int, position: int, start: int, count: int) -> None:
    got = token_bits(torch.tensor([seed]), torch.tensor([position]), range(start, start + count))
    assert got.tolist() == [[reference.bits(seed, position, token) for token in range(start, start + count)]]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), rows=st.integers(1, 5), count=st.integers(1, 40))
def test_a_scattered_list_finds_the_values_of_the_whole_vocabulary(data: st.DataObject, rows: int, count: int) -> None:
    vocab = 97
    seeds = torch.tensor(data.draw(st.lists(SEED, min_size=rows, max_size=rows)))
    positions = torch.tensor(data.draw(st.lists(st.integers(0, 2**33), min_size=rows, max_size=rows)))
    whole = token_bits(seeds, positions, range(vocab))
    assert torch.equal(token_bits(seeds, positions, torch.arange(vocab)), whole)

    shared = torch.tensor(data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count)))
    assert torch.equal(token_bits(seeds, positions, shared), whole[:, shared])
    own = torch.stack([shared.roll(shift) for shift in range(rows)])
    assert torch.equal(token_bits(seeds, positions, own), whole.gather(1, own))


def test_every_part_of_seed_and_position_matters() -> None:
    seeds = torch.tensor([1, 1 + 2**32, 1, 1, 2**63 - 1])
    positions = torch.tensor([7, 7, 7 + 2**32, 8, 7])
    drawn = token_bits(seeds, positions, range(64))
    assert drawn.unique().numel() == drawn.numel()
    assert int(drawn.min()) >= 0 and int(drawn.max()) < 2**32


def test_neighbouring_counters_are_uniform_and_independent() -> None:
    """Small seeds, positions and tokens are what users have: joint cells of neighbours along each axis are level."""
    seeds = torch.arange(64).repeat_interleave(64)
    drawn = token_bits(seeds, torch.arange(64).repeat(64), range(64)).view(64, 64, 64) >> 28
    for axis in range(3):
        near, far = drawn.narrow(axis, 0, 63), drawn.narrow(axis, 1, 63)
        pairs = np.bincount((near * 16 + far).flatten().numpy(), minlength=256)
        assert chisquare(pairs).pvalue > 1e-3
