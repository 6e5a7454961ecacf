"""Speculation counters of one request, counted in one place: after the finish rules have cut the run.

Knows run lengths only, neither tokens nor text.
"""

from __future__ import annotations

from frostline.types import SpecStats


class SpecCounter:
    """Grows by one run at a time; `freeze` gives the user's SpecStats."""

    def __init__(self) -> None:
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._runs: list[int] = []

    def record(self, *, drafted: int, committed: int, kept: int) -> None:
        """One run: depth offered, tokens committed (accepted drafts and the bonus), tokens left by the finish rules."""
        accepted = committed - 1
        if not 0 <= accepted <= drafted or not 1 <= kept <= committed:
            raise AssertionError(f"run of {committed} tokens from {drafted} drafts, {kept} kept")
        offered = drafted if kept == committed else kept
        self._add(self._drafted, offered)
        self._add(self._accepted, min(accepted, kept))
        self._runs.append(kept)

    def freeze(self) -> SpecStats:
        accepted = self._accepted + [0] * (len(self._drafted) - len(self._accepted))
        return SpecStats(
            iterations=len(self._runs),
            drafted=sum(self._drafted),
            drafted_per_depth=tuple(self._drafted),
            accepted_per_depth=tuple(accepted),
            run_lengths=tuple(self._runs),
        )

    @staticmethod
    def _add(per_depth: list[int], depths: int) -> None:
        per_depth.extend([0] * (depths - len(per_depth)))
        for depth in range(depths):
            per_depth[depth] += 1
