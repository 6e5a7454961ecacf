"""Finds where a text begins to repeat itself: figures must not live on loops, nor should a drafter learn from them.

The rule: a text loops when some `LOOP_TOKENS` tokens in a row repeat with a period of at most `LOOP_PERIOD`; it is cut
after the first round. Knows token ids only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LOOP_TOKENS, LOOP_PERIOD = 64, 16


def loop_starts(texts: Sequence[Sequence[int]], *, tokens: int = LOOP_TOKENS, period: int = LOOP_PERIOD) -> list[int]:
    """How many tokens of each text to keep: up to the end of the first round of its first loop, or all of them."""
    width = max((len(text) for text in texts), default=0)
    # Padding never equals anything, itself included.
    rows = np.tile(-1 - np.arange(width), (len(texts), 1))
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    kept = np.array([len(text) for text in texts])
    place = np.arange(width)
    for step in range(1, min(period, width - 1) + 1):
        same = np.zeros(rows.shape, dtype=bool)
        same[:, step:] = rows[:, step:] == rows[:, :-step]
        differed = np.maximum.accumulate(np.where(same, -1, place), axis=1)
        long = place - differed >= tokens - step
        first = long.argmax(axis=1)
        begins = np.take_along_axis(differed, first[:, None], axis=1)[:, 0] + 1
        kept = np.where(long.any(axis=1), np.minimum(kept, begins), kept)
    return [int(count) for count in kept]
