"""The constant position of the assistant's queries, `P` or `P - 1`, measured on live traffic where nobody recorded it.

Knows offsets and acceptance counts. A wrong position never changes the output, it only costs acceptance, so measuring
means drafting with one and then the other.
"""

from __future__ import annotations

import logging

from frostline.config import DraftPosition

_log = logging.getLogger(__name__)

_OFFSETS = {"P": 0, "P-1": -1}

# Drafts that each position gets to offer before one is kept: the rates then differ by 0.05 or less through chance.
_TRIAL_DRAFTS = 1024


class DraftOffset:
    """`next()` is the offset of the next plan; `record` takes what came of it.

    "P" and "P-1" are fixed. "auto" alternates until both have offered enough drafts, keeps the better and logs it.
    """

    def __init__(self, position: DraftPosition) -> None:
        self._kept: int | None = _OFFSETS.get(position)
        self._turn = 0
        self._offered = dict.fromkeys(_OFFSETS.values(), 0)
        self._accepted = dict.fromkeys(_OFFSETS.values(), 0)

    @property
    def is_settled(self) -> bool:
        return self._kept is not None

    def next(self) -> int:
        if self._kept is not None:
            return self._kept
        self._turn += 1
        return tuple(self._offered)[self._turn % 2]

    def record(self, offset: int, *, offered: int, accepted: int) -> None:
        """Depths offered to a batch and accepted from it, drafted at this offset."""
        if self._kept is not None:
            return
        self._offered[offset] += offered
        self._accepted[offset] += accepted
        if min(self._offered.values()) < _TRIAL_DRAFTS:
            return
        rates = {name: self._accepted[value] / self._offered[value] for name, value in _OFFSETS.items()}
        best = max(rates, key=lambda name: rates[name])
        self._kept = _OFFSETS[best]
        _log.info(
            "draft_position auto: keeping %s; acceptance %s",
            best,
            ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items()),
        )
