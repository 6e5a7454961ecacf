"""The alarm for drafts that are hardly ever accepted: the output stays right, so nothing else would tell.

Knows counts of first drafts. A first draft is the one at depth 1: where even these fail, the pair is not right.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)

# First drafts in a window, and the share of accepted ones below which it is called near zero. A pair that accepts 5%
# passes a window of this size wrongly once in a hundred, and a working pair accepts 40% and more.
WINDOW = 256
NEAR_ZERO = 0.02

_CAUSES = (
    "an assistant made for another target or another fine-tune of it; a target whose weights or KV cache are quantized "
    "or scaled unlike those that the assistant was trained on; a fixed draft_position that is not the pair's; a very "
    "high temperature. Check the pair with `frostline inspect`, let draft_position be 'auto', or decode plainly with "
    "num_steps=0"
)


class AcceptanceAlarm:
    """Warns once when a window of first drafts was accepted nearly never, and again only after a better window."""

    def __init__(self) -> None:
        self._offered = 0
        self._accepted = 0
        self._warned = False

    def record(self, *, offered: int, accepted: int) -> None:
        """First drafts of one step: offered, and accepted of them."""
        self._offered += offered
        self._accepted += accepted
        if self._offered < WINDOW:
            return
        is_low = self._accepted < NEAR_ZERO * self._offered
        if is_low and not self._warned:
            _log.warning(
                "drafts are hardly ever accepted: %d of the last %d first drafts. The tokens are right, the drafting "
                "only costs time. Likely causes: %s",
                self._accepted,
                self._offered,
                _CAUSES,
            )
        self._warned = is_low
        self._offered = self._accepted = 0
