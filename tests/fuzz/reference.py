"""What the fake pair must give, from its tables and the definitions: plain decoding and drafting in Python numbers.

Of the project it uses the noise alone, one table per seed; tests/sampling proves that noise against Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import torch

from frostline.runner.sampling import gumbel
from tests.equality.drafter import Shape
from tests.fuzz.tables import BUCKETS, POSITIONS, VOCAB, tables
from tests.sampling.reference import keep


@dataclass(frozen=True)
class Rule:
    """How a row samples. depth: its own draft depth."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    depth: int


@dataclass(frozen=True)
class _Lists:
    number: list[list[float]]
    target: list[list[float]]
    draft: list[list[float]]
    candidates: list[list[int]]


@cache
def _lists() -> _Lists:
    found = tables()
    return _Lists(
        *(part.tolist() for part in (found.number, found.target, found.draft, found.candidates))  # type: ignore[arg-type]
    )


@lru_cache(maxsize=512)
def _noise(seed: int) -> list[list[float]]:
    """The noise of every token at every position."""
    places = torch.arange(POSITIONS)
    table: list[list[float]] = gumbel(torch.full((POSITIONS,), seed), places, range(VOCAB), torch.float64).tolist()
    return table


def hash_of(tokens: Sequence[int]) -> float:
    number = _lists().number
    return sum(number[place][token] for place, token in enumerate(tokens))


def target_logits(tokens: Sequence[int]) -> list[float]:
    return _lists().target[int(hash_of(tokens)) % BUCKETS]


def scores(
    logits: Sequence[float], ids: Sequence[int], position: int, rule: Rule, *, noisy: bool = True
) -> list[float]:
    """Scores of the candidates `ids` for the token at `position`: the rule of architecture 4.3."""
    if rule.temperature == 0 or not noisy:
        return list(logits)
    tempered = [value / rule.temperature for value in logits]
    kept = keep(tempered, rule.top_k, rule.top_p, rule.min_p)
    noise = _noise(rule.seed)[position]
    return [value + noise[ids[n]] if n in kept else -math.inf for n, value in enumerate(tempered)]


def next_token(tokens: Sequence[int], rule: Rule) -> int:
    """The token that plain decoding emits after a history."""
    found = scores(target_logits(tokens), range(VOCAB), len(tokens), rule)
    return found.index(max(found))


@dataclass(frozen=True)
class _Node:
    """A frontier node: its place among the candidates (-1: the root), token, hash with that token, cumulative score."""

    place: int
    hash: float
    score: float


def draft(tokens: Sequence[int], shape: Shape, rule: Rule, *, narrow: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens, parents) of the nodes for a request whose known tokens, bonus included, are these."""
    lists, place = _lists(), len(tokens)
    frontier = [_Node(place=-1, hash=hash_of(tokens), score=0.0)]
    candidates: list[tuple[float, int, int]] = []
    for depth in range(shape.steps):
        level: list[tuple[int, _Node]] = []
        for node in frontier:
            for score, token in _children(node.hash, place + depth, shape, rule, narrow=narrow):
                number = len(candidates)
                candidates.append((node.score + score, token, node.place))
                after = node.hash + lists.number[place + depth][token]
                level.append((number, _Node(place=number, hash=after, score=node.score + score)))
        best = sorted(level, key=lambda entry: (-entry[1].score, entry[0]))[: shape.topk]
        frontier = [node for _, node in best]
    if shape.topk == 1:
        chosen = list(range(len(candidates)))
    else:
        chosen = sorted(sorted(range(len(candidates)), key=lambda n: (-candidates[n][0], n))[: shape.width - 1])
    node_of = {-1: 0} | {number: at for at, number in enumerate(chosen, start=1)}
    found = (tokens[-1], *(candidates[n][1] for n in chosen))
    return found, (-1, *(node_of.get(candidates[n][2], -1) for n in chosen))


def _children(hash_: float, position: int, shape: Shape, rule: Rule, *, narrow: bool) -> list[tuple[float, int]]:
    """The best k (log score, token) of a node, the token's own position given."""
    lists, at = _lists(), int(hash_) % BUCKETS
    ids: Sequence[int] = range(VOCAB)
    logits = lists.draft[at]
    if narrow:
        ids = lists.candidates[at]
        logits = [logits[token] for token in ids]
    found = scores(logits, ids, position, rule, noisy=shape.coupled)
    order = sorted(range(len(found)), key=lambda n: (-found[n], n))[: shape.topk]
    if shape.topk == 1:
        return [(0.0, ids[order[0]])]
    highest = max(found)
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in found))
    return [(found[n] - total, ids[n]) for n in order]
