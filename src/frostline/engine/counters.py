"""Speculation counters, counted in one place: after the finish rules have cut the run.

Knows run lengths only, neither tokens nor text.
"""

from __future__ import annotations

from itertools import accumulate

from frostline.types import SpecStats


class DepthCounter:
    """Depths offered and accepted, summed over runs. A run that was cut counts up to its cut in both."""

    def __init__(self) -> None:
        # Runs by their depth; a run of depth 3 counts at depths 1, 2 and 3. Summed up when somebody asks.
        self._drafted = [0]
        self._accepted = [0]
        self.runs = 0

    @property
    def drafted(self) -> tuple[int, ...]:
        return _at_least(self._drafted)

    @property
    def accepted(self) -> tuple[int, ...]:
        return _at_least(self._accepted)

    def record(self, *, drafted: int, committed: int, kept: int) -> None:
        """One run: depth offered, tokens committed (accepted drafts and the bonus), tokens left by the finish rules."""
        accepted = committed - 1
        if not 0 <= accepted <= drafted or not 1 <= kept <= committed:
            raise AssertionError(f"run of {committed} tokens from {drafted} drafts, {kept} kept")
        if kept < committed:
            drafted = accepted = kept
        while drafted >= len(self._drafted):
            self._drafted.append(0)
            self._accepted.append(0)
        self._drafted[drafted] += 1
        self._accepted[accepted] += 1
        self.runs += 1


def _at_least(runs_by_depth: list[int]) -> tuple[int, ...]:
    """Runs that reach depth 1, depth 2 and so on."""
    return tuple(reversed(tuple(accumulate(reversed(runs_by_depth[1:])))))


class SpecCounter:
    """One request's: grows by one run at a time; `freeze` gives the user's SpecStats."""

    def __init__(self) -> None:
        self._depths = DepthCounter()
        self._runs: list[int] = []
        self._tokens = 0

    def record(self, *, drafted: int, committed: int, kept: int) -> None:
        """As DepthCounter.record."""
        self._depths.record(drafted=drafted, committed=committed, kept=kept)
        self._runs.append(kept)
        self._tokens += kept

    @property
    def mean_run(self) -> float:
        """Tokens per run so far; 1 before the first."""
        return self._tokens / len(self._runs) if self._runs else 1.0

    def freeze(self) -> SpecStats:
        return SpecStats(
            iterations=len(self._runs),
            drafted=sum(self._depths.drafted),
            drafted_per_depth=self._depths.drafted,
            accepted_per_depth=self._depths.accepted,
            run_lengths=tuple(self._runs),
        )
