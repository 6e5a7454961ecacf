"""What the fake models know: tables from which tokens, hashes and logits follow, and a decoder of their few tokens.

A history's hash is the sum of one number per (position, token): below 2^39, so exact in float64 and cheap to chain.

T hash buckets, V vocabulary, C candidates of the draft head, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

VOCAB = 24
# The last two ids are never chosen: one says that a canary is dead, one makes NaN of the rows that hold it.
ALARM, POISON = VOCAB - 1, VOCAB - 2
WORDS = VOCAB - 2
EOS = (1, 5)
BUCKETS = 1021
POSITIONS = 160
NEVER = -1e4
_LETTERS = "abcab dcb e"


@dataclass(frozen=True, kw_only=True)
class Tables:
    """number [S, V]; target, draft [T, V] logits; candidates [T, C] token ids, ALARM always among them."""

    number: Tensor
    target: Tensor
    draft: Tensor
    candidates: Tensor


@cache
def tables(seed: int = 0) -> Tables:
    """Of a hundred buckets the drafter is right in about sixty, close in twenty, and knows nothing in the others."""
    rng = torch.Generator().manual_seed(seed)
    number = torch.randint(1, 2**32, (POSITIONS, VOCAB), generator=rng).double()
    target, other = (2.0 * torch.randn(BUCKETS, VOCAB, generator=rng, dtype=torch.float64) for _ in range(2))
    kind_T1 = torch.rand(BUCKETS, 1, generator=rng)
    draft = torch.where(kind_T1 < 0.6, target, torch.where(kind_T1 < 0.8, target + 0.4 * other, other))
    for logits in (target, draft):
        logits[:, WORDS:] = NEVER
    order = torch.rand(BUCKETS, WORDS, generator=rng).argsort(dim=1)[:, : WORDS - 5]
    candidates = torch.cat((order, torch.full((BUCKETS, 1), ALARM)), dim=1)
    return Tables(number=number, target=target, draft=draft, candidates=candidates)


def bucket(hash_: Tensor) -> Tensor:
    """Which row of the tables a history has; a history that is not a number has the first."""
    return hash_.nan_to_num(0.0).remainder(BUCKETS).long()


class Letters:
    """A decoder: one letter per token, a few of them alike, so that stop strings come up by chance."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        kept = [token for token in ids if not (skip_special_tokens and token in EOS)]
        return "".join(_LETTERS[token % len(_LETTERS)] for token in kept)
