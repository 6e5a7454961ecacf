"""Counter-based random bits: Philox4x32-10 in plain torch integers.

What it is for: a value that is a pure function of (seed, position, token), so noise needs no state, no order and no
stream, and is the same on every device and in every batch. What it does not know: distributions, logits, requests.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); constants and known answers
are those of Random123. Words are 32 bits held in int64, since torch has no unsigned multiply: the product of two such
words wraps in int64 but keeps all of its 64 bits.

Legend: R rows, C token ids, W blocks of four neighbouring token ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]

LANES = 4
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Ten rounds of Philox4x32: four int64 words of 32 bits from a counter of four and a key of two; shapes broadcast.

    Words that do not need the full shape yet stay small: the first rounds run on whatever the counter's parts share.
    """
    a, b, c, d = counter
    key_0, key_1 = key
    for step in range(_ROUNDS):
        product_a, product_c = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        # b and d carry a whole product: their upper halves are garbage that the masks below (and at the end) remove.
        a = _high_xor(product_c, b, (key_0 + step * _KEY_STEPS[0]) & _WORD)
        c = _high_xor(product_a, d, (key_1 + step * _KEY_STEPS[1]) & _WORD)
        b, d = product_c, product_a
    return a, b & _WORD, c, d & _WORD


def token_bits(seed_R: Tensor, position_R: Tensor, token_ids: Tensor | range) -> Tensor:
    """32 random bits for every (row, token id), int64 [R, C].

    seed_R: int64, 0 to 2^63 - 1; its halves are the key. position_R: int64, at least 0. token_ids: int64 [C] or [R, C],
    or a range of step 1. Token `v` is lane `v % 4` of counter `(v // 4, position low, position high, 0)`, so a range
    evaluates one counter for four neighbours, and any other list of ids finds the same values at four times the cost.
    """
    key = (seed_R[:, None] & _WORD, (seed_R[:, None] >> 32) & _WORD)
    low_R1, high_R1 = position_R[:, None] & _WORD, (position_R[:, None] >> 32) & _WORD
    zero = torch.zeros_like(low_R1)
    if isinstance(token_ids, range):
        first, skipped = divmod(token_ids.start, LANES)
        last = -(-token_ids.stop // LANES)
        block_W = torch.arange(first, last, dtype=torch.int64, device=seed_R.device)
        lanes = philox4x32((block_W[None], low_R1, high_R1, zero), key)
        return torch.stack(lanes, dim=-1).flatten(1)[:, skipped : skipped + len(token_ids)]
    id_RC = token_ids if token_ids.dim() == 2 else token_ids[None]
    lane_RC = id_RC & (LANES - 1)
    w0, w1, w2, w3 = philox4x32((id_RC >> 2, low_R1, high_R1, zero), key)
    odd_RC = (lane_RC & 1).bool()
    return torch.where(lane_RC < 2, torch.where(odd_RC, w1, w0), torch.where(odd_RC, w3, w2))


def _high_xor(product: Tensor, word: Tensor, key: Tensor) -> Tensor:
    """Upper half of a 64-bit product, xor a word (low half of `word`), xor the round key."""
    return (product >> 32).bitwise_xor(word).bitwise_xor(key).bitwise_and_(_WORD)
