"""Prompt-lookup drafting, the rival that needs no model: what followed the newest tokens when they last occurred.

Used to show that the drafter's figures mean something. Knows token ids only.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 3


def lookup_drafts(tokens: Sequence[int], place: int, num_steps: int) -> list[int]:
    """Drafts at P = place, where tokens[0..place] are known: the continuation of the latest earlier match.

    The last 3 tokens are looked up, then 2, then 1. Fewer drafts come back when the match lies near the end, and none
    without a match.
    """
    known = list(tokens[: place + 1])
    for width in range(min(LONGEST, place), 0, -1):
        wanted = known[-width:]
        for end in range(place, width - 1, -1):
            if known[end - 1] == wanted[-1] and known[end - width : end] == wanted:
                return known[end : end + num_steps]
    return []
