"""Speculation counters, counted in one place: after the finish rules have cut the run.

Knows run lengths only, neither tokens nor text.
"""

from __future__ import annotations

from frostline.types import SpecStats


class DepthCounter:
    """Depths offered and accepted, summed over runs. A run that was cut counts up to its cut in both."""

    def __init__(self) -> None:
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self.runs = 0

    @property
    def drafted(self) -> tuple[int, ...]:
        return tuple(self._drafted)

    @property
    def accepted(self) -> tuple[int, ...]:
        return tuple(self._accepted + [0] * (len(self._drafted) - len(self._accepted)))

    def record(self, *, drafted: int, committed: int, kept: int) -> None:
        """One run: depth offered, tokens committed (accepted drafts and the bonus), tokens left by the finish rules."""
        accepted = committed - 1
        if not 0 <= accepted <= drafted or not 1 <= kept <= committed:
            raise AssertionError(f"run of {committed} tokens from {drafted} drafts, {kept} kept")
        self._add(self._drafted, drafted if kept == committed else kept)
        self._add(self._accepted, min(accepted, kept))
        self.runs += 1

    @staticmethod
    def _add(per_depth: list[int], depths: int) -> None:
        per_depth.extend([0] * (depths - len(per_depth)))
        for depth in range(depths):
            per_depth[depth] += 1


class SpecCounter:
    """One request's: grows by one run at a time; `freeze` gives the user's SpecStats."""

    def __init__(self) -> None:
        self._depths = DepthCounter()
        self._runs: list[int] = []

    def record(self, *, drafted: int, committed: int, kept: int) -> None:
        """As DepthCounter.record."""
        self._depths.record(drafted=drafted, committed=committed, kept=kept)
        self._runs.append(kept)

    def freeze(self) -> SpecStats:
        return SpecStats(
            iterations=len(self._runs),
            drafted=sum(self._depths.drafted),
            drafted_per_depth=self._depths.drafted,
            accepted_per_depth=self._depths.accepted,
            run_lengths=tuple(self._runs),
        )
