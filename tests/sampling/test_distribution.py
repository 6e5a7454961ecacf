"""Chi-square of the functions that an iteration calls against exact distributions, and of a rule that is not exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frostline.runner.sampling import choose, perturb
from tests.sampling import reference
from tests.sampling.toy import Toy, coupled, plain, sampling_rows, speculate, toy

PARAMS = {
    "plain": (1.0, 0, 1.0, 0.0),
    "warm": (1.4, 0, 1.0, 0.0),
    "filtered": (0.8, 5, 0.93, 0.02),
}
DRAWS = 102_400
CHUNK = 8_192
START = 3


def joint(game: Toy, params: tuple[float, int, float, float], length: int) -> np.ndarray:
    """Exact probability of every sequence of `length` tokens after context START: [V] * length."""
    vocab = game.vocab
    table = np.stack([reference.probabilities(row, *params) for row in game.target.tolist()])
    sequences = np.ones((1,))
    contexts = np.array([START])
    for _ in range(length):
        sequences = (sequences[:, None] * table[contexts]).ravel()
        contexts = (contexts[:, None] % vocab * vocab + np.arange(vocab)).ravel()
    return sequences.reshape((vocab,) * length)


def count(tokens: torch.Tensor, vocab: int) -> np.ndarray:
    index = np.ravel_multi_index(tuple(tokens.T.numpy()), (vocab,) * tokens.shape[1])
    return np.bincount(index, minlength=vocab ** tokens.shape[1])


def draws(length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(seed, position) of every draw, in chunks: four seeds' worth of positions whose windows do not overlap."""
    index = torch.arange(DRAWS)
    return list(zip((index // 4).split(CHUNK), (100 + index % 4 * length).split(CHUNK), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PARAMS)
def test_one_token_has_its_distribution(name: str, dtype: torch.dtype) -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    counts = np.zeros(30, dtype=np.int64)
    for seed, position in draws(1):
        rows = sampling_rows(seed, *PARAMS[name], dtype=dtype)
        score = perturb(logits.expand(len(seed), 30), rows, position, sampled=True, filtered=name == "filtered")
        counts += np.bincount(choose(score).numpy(), minlength=30)
    assert counts.sum() >= 100_000 and (counts > 0).sum() > 3
    assert reference.chi_square(counts, reference.probabilities(logits.tolist(), *PARAMS[name])) > 1e-3


def test_scattered_candidates_have_their_distribution() -> None:
    ids = torch.randperm(262_144, generator=torch.Generator().manual_seed(0))[:20]
    logits = torch.randn(20, generator=torch.Generator().manual_seed(6)) * 1.5
    counts = np.zeros(20, dtype=np.int64)
    for seed, position in draws(1):
        rows = sampling_rows(seed)
        score = perturb(logits.expand(len(seed), 20), rows, position, ids, sampled=True, filtered=False)
        counts += np.bincount(choose(score).numpy(), minlength=20)
    assert reference.chi_square(counts, reference.probabilities(logits.tolist(), 1.0, 0, 1.0, 0.0)) > 1e-3


@pytest.mark.parametrize("name", ["plain", "filtered"])
@pytest.mark.parametrize(("steps", "topk", "nodes"), [(2, 1, 3), (2, 2, 5), (2, 3, 9)])
def test_a_speculated_sequence_has_its_distribution(name: str, steps: int, topk: int, nodes: int) -> None:
    """Joint over three neighbouring tokens: chains and trees with siblings, whatever was accepted."""
    length, game = 3, toy(6, seed=21)
    counts = np.zeros(6**length, dtype=np.int64)
    by_accepted = np.zeros(steps + 1, dtype=np.int64)
    draft = coupled(steps, topk, nodes)
    for seed, position in draws(length):
        rows = sampling_rows(seed, *PARAMS[name])
        context = torch.full_like(seed, START)
        tokens, accepted = speculate(game, rows, context, position, length, draft, steps)
        counts += count(tokens, 6)
        by_accepted += np.bincount(accepted.numpy(), minlength=steps + 1)
    exact = joint(game, PARAMS[name], length)
    assert counts.sum() == DRAWS
    assert by_accepted.min() > DRAWS // 50, "every depth was exercised"
    assert reference.chi_square(counts, exact) > 1e-3
    for first in range(length - 1):
        axes = tuple(axis for axis in range(length) if axis not in (first, first + 1))
        pairs = counts.reshape((6,) * length).sum(axis=axes)
        assert reference.chi_square(pairs, exact.sum(axis=axes)) > 1e-3


def test_positions_of_one_seed_are_independent() -> None:
    """One long request: neighbouring tokens under one seed, logits the same at every position."""
    length, chains = 2_000, 64
    row = torch.randn(1, 5, generator=torch.Generator().manual_seed(2))
    game = Toy(target=row.expand(25, 5).contiguous(), drafter=row.expand(25, 5).contiguous())
    seed = torch.arange(chains)
    tokens = plain(game, sampling_rows(seed), torch.zeros_like(seed), torch.zeros_like(seed), length)
    exact = reference.probabilities(row[0].tolist(), 1.0, 0, 1.0, 0.0)
    even = tokens.reshape(-1, 2)
    odd = tokens[:, 1:-1].reshape(-1, 2)
    for pairs in (even, odd):
        assert reference.chi_square(count(pairs, 5), np.multiply.outer(exact, exact)) > 1e-3


def test_shared_noise_makes_drafts_agree() -> None:
    """The point of coupled drafts: with the target's noise they are accepted more often than a most probable token."""
    game = toy(6, seed=21, apart=0.5)
    seed = torch.arange(20_000)
    context, position = torch.full_like(seed, START), torch.full_like(seed, 5)
    rows = sampling_rows(seed)
    _, shared = speculate(game, rows, context, position, 1, coupled(1, 1, 2), 1)
    best = float(torch.tensor(joint(game, PARAMS["plain"], 1)).max())
    assert float(shared.float().mean()) > best + 0.1


def assisted(target: np.ndarray, draft: np.ndarray, *, sample_draft: bool) -> np.ndarray:
    """Counts over 200,000 draws of ratio acceptance: accept the draft with min(1, p / q), else draw from (p - q)+.

    sample_draft False is what transformers' assisted sampling does: the draft is the most probable token, yet q is the
    drafter's softmax at it.
    """
    rng = np.random.default_rng(44)
    tokens = np.full(200_000, draft.argmax())
    if sample_draft:
        tokens = rng.choice(len(draft), size=tokens.shape, p=draft)
    accepted = rng.random(tokens.shape) < np.minimum(1, target[tokens] / draft[tokens])
    residual = np.maximum(target - draft, 0)
    other = rng.choice(len(target), size=tokens.shape, p=residual / residual.sum())
    return np.bincount(np.where(accepted, tokens, other), minlength=len(target))


def test_reported_44_argmax_drafts_under_a_softmax_ratio_are_not_lossless() -> None:
    """reported.md row 44: their rule fails the test that ours passes on the same tables."""
    game = toy(6, seed=21)
    target = reference.probabilities(game.target[START].tolist(), 1.0, 0, 1.0, 0.0)
    draft = reference.probabilities(game.drafter[START].tolist(), 1.0, 0, 1.0, 0.0)
    theirs = assisted(target, draft, sample_draft=False)
    assert reference.chi_square(theirs, target) < 1e-50
    # The ratio itself is sound where the draft really is drawn from q: the argmax is what breaks it.
    assert reference.chi_square(assisted(target, draft, sample_draft=True), target) > 1e-3

    ours = np.zeros(6, dtype=np.int64)
    for seed, position in draws(1):
        rows, context = sampling_rows(seed), torch.full_like(seed, START)
        tokens, _ = speculate(game, rows, context, position, 1, coupled(1, 1, 2), 1)
        ours += count(tokens, 6)
    assert reference.chi_square(ours, target) > 1e-3
