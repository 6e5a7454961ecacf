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
from frostline.types import SamplingParams
from tests.equality.drafter import Shape
from tests.fuzz.tables import BUCKETS, EOS, POSITIONS, VOCAB, tables
from tests.sampling.reference import keep


@dataclass(frozen=True)
class Rule:
    """How a request samples: its options, its seed, the length of its prompt, and what no request may emit."""

    params: SamplingParams
    seed: int
    prompt_len: int
    suppressed: tuple[int, ...]


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


def processed(logits: Sequence[float], ids: Sequence[int], tokens: Sequence[int], rule: Rule) -> list[float]:
    """Logits of the candidates `ids` after the options that come before the temperature; tokens: all before."""
    params, output = rule.params, tokens[rule.prompt_len :]
    waits = {*EOS, *params.stop_token_ids} if len(output) < params.min_tokens else set()
    bias = dict(params.bias_pairs)
    found = []
    for value, token in zip(logits, ids, strict=True):
        count = output.count(token)
        if token in tokens:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        value += bias.get(token, 0.0)
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        found.append(value if allowed and token not in waits and token not in rule.suppressed else -math.inf)
    return found


def scores(
    logits: Sequence[float], ids: Sequence[int], tokens: Sequence[int], rule: Rule, *, noisy: bool = True
) -> list[float]:
    """Scores of the candidates `ids` for the token after `tokens`: the rule of architecture 4.3."""
    params, logits = rule.params, processed(logits, ids, tokens, rule)
    if params.temperature == 0 or not noisy:
        return logits
    tempered = [value / params.temperature for value in logits]
    if max(tempered) == -math.inf:
        return tempered
    kept = keep(tempered, max(params.top_k, 0), params.top_p, params.min_p)
    noise = _noise(rule.seed)[len(tokens)]
    return [value + noise[ids[n]] if n in kept else -math.inf for n, value in enumerate(tempered)]


def next_token(tokens: Sequence[int], rule: Rule) -> int:
    """The token that plain decoding emits after a history."""
    found = scores(target_logits(tokens), range(VOCAB), tokens, rule)
    return found.index(max(found))


def logprobs(tokens: Sequence[int], token: int, top: int) -> list[tuple[int, int, float]]:
    """(token, rank, log-probability) of the token that comes after a history, and then of the most likely ones."""
    logits = target_logits(tokens)
    highest = max(logits)
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in logits))
    order = sorted(range(VOCAB), key=lambda other: -logits[other])
    named = dict.fromkeys([token, *order[:top]])
    return [(other, order.index(other) + 1, logits[other] - total) for other in named]


@dataclass(frozen=True)
class _Node:
    """A frontier node: its place among the candidates (-1: the root), all tokens up to it, cumulative score."""

    place: int
    tokens: tuple[int, ...]
    score: float


def draft(tokens: Sequence[int], shape: Shape, rule: Rule, *, narrow: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens, parents) of the nodes for a request whose known tokens, bonus included, are these."""
    frontier = [_Node(place=-1, tokens=tuple(tokens), score=0.0)]
    candidates: list[tuple[float, int, int]] = []
    for _ in range(shape.steps):
        level: list[tuple[int, _Node]] = []
        for node in frontier:
            for score, token in _children(node.tokens, shape, rule, narrow=narrow):
                number = len(candidates)
                candidates.append((node.score + score, token, node.place))
                level.append((number, _Node(place=number, tokens=(*node.tokens, token), score=node.score + score)))
        best = sorted(level, key=lambda entry: (-entry[1].score, entry[0]))[: shape.topk]
        frontier = [node for _, node in best]
    if shape.topk == 1:
        chosen = list(range(len(candidates)))
    else:
        chosen = sorted(sorted(range(len(candidates)), key=lambda n: (-candidates[n][0], n))[: shape.width - 1])
    node_of = {-1: 0} | {number: at for at, number in enumerate(chosen, start=1)}
    found = (tokens[-1], *(candidates[n][1] for n in chosen))
    return found, (-1, *(node_of.get(candidates[n][2], -1) for n in chosen))


def _children(tokens: tuple[int, ...], shape: Shape, rule: Rule, *, narrow: bool) -> list[tuple[float, int]]:
    """The best k (log score, token) of the node that these tokens end in."""
    lists, at = _lists(), int(hash_of(tokens)) % BUCKETS
    ids: Sequence[int] = range(VOCAB)
    logits = lists.draft[at]
    if narrow:
        ids = lists.candidates[at]
        logits = [logits[token] for token in ids]
    found = scores(logits, ids, tokens, rule, noisy=shape.coupled)
    order = sorted(range(len(found)), key=lambda n: (-found[n], n))[: shape.topk]
    if shape.topk == 1:
        return [(0.0, ids[order[0]])]
    highest = max(found)
    if highest == -math.inf:
        return [(highest, ids[n]) for n in order]
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in found))
    return [(found[n] - total, ids[n]) for n in order]
