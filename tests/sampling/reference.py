"""From-scratch twins of the sampling rule: Python numbers and loops, one row at a time; of ours only values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.stats import chisquare

from frostline.runner.rules import LogitRules

WORD = 0xFFFFFFFF


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 as its paper states it, in unbounded integers."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p2 = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (p2 >> 32) ^ x1 ^ k0, p2 & WORD, (p0 >> 32) ^ x3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return x0, x1, x2, x3


def bits(seed: int, position: int, token: int) -> int:
    counter = (token // 4, position & WORD, position >> 32, 0)
    return philox(counter, (seed & WORD, seed >> 32))[token % 4]


def noise(seed: int, position: int, token: int) -> float:
    uniform = ((bits(seed, position, token) >> 9) + 0.5) / 2**23
    return -math.log(-math.log(uniform))


def processed(
    logits: Sequence[float], rules: LogitRules, output: Sequence[int], position: int, tokens: Sequence[int]
) -> list[float]:
    """vLLM's penalties, biases and masks in their order, for one row, given every token of the output so far.

    tokens: what the logits are of.
    """
    bias, earliest, counts, prompt = dict(rules.bias), dict(rules.earliest), Counter(output), set(rules.prompt_ids)
    found = []
    for token, value in zip(tokens, logits, strict=True):
        if token in prompt or token in counts:
            value = value / rules.repetition if value > 0 else value * rules.repetition
        value -= rules.frequency * counts[token]
        value -= rules.presence if counts[token] else 0.0
        value += bias.get(token, 0.0)
        allowed = rules.allowed is None or token in rules.allowed
        found.append(value if allowed and position >= earliest.get(token, 0) else -math.inf)
    return found


def keep(tempered: Sequence[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Indices that survive top-k, then top-p over the renormalised rest, then min-p; whoever ties with one stays."""
    kept = set(range(len(tempered)))
    ranked = sorted(tempered, reverse=True)
    if top_k > 0:
        kept = {i for i in kept if tempered[i] >= ranked[min(top_k, len(ranked)) - 1]}
    weight = [math.exp(value - ranked[0]) for value in tempered]
    if top_p < 1:
        total = sum(weight[i] for i in kept)
        smallest: set[int] = set()
        for value in sorted({tempered[i] for i in kept}, reverse=True):
            if sum(weight[i] for i in smallest) / total >= top_p:
                break
            smallest |= {i for i in kept if tempered[i] == value}
        kept = smallest
    return {i for i in kept if min_p == 0 or tempered[i] >= ranked[0] + math.log(min_p)}


def probabilities(logits: Sequence[float], temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The exact distribution that a row should have."""
    tempered = [value / temperature for value in logits]
    kept = keep(tempered, top_k, top_p, min_p)
    weight = np.array([math.exp(v - max(tempered)) if i in kept else 0.0 for i, v in enumerate(tempered)])
    return weight / weight.sum()


def chi_square(observed: np.ndarray, expected_probability: np.ndarray) -> float:
    """p-value of counts against a distribution, rare cells pooled; 0.0 if something impossible was seen."""
    observed, expected = observed.ravel(), expected_probability.ravel() * observed.sum()
    possible = expected > 0
    if observed[~possible].any():
        return 0.0
    rare = possible & (expected < 10)
    common = possible & ~rare
    counts, means = observed[common], expected[common]
    if expected[rare].sum() > 5:
        counts, means = np.append(counts, observed[rare].sum()), np.append(means, expected[rare].sum())
    elif rare.any():
        means = means * counts.sum() / means.sum()
    return float(chisquare(counts, means).pvalue)
