"""Counters of an engine: what its steps have come to, to the token.

Knows numbers of tokens, drafts and runs; nothing of who asked or what the tokens are.
"""

from __future__ import annotations

from dataclasses import dataclass

from frostline.engine.counters import DepthCounter


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Sums over all requests since the engine was made.

    steps: what was launched and read. prefill_tokens: tokens that were prefilled, those of preempted requests again.
    cached_prompt_tokens: those that need not be, since the prefix cache or another sample had them. first_tokens:
    requests that got one; it comes from the prefill. iterations: runs that gave a request tokens. drafted_per_depth,
    accepted_per_depth: as in SpecStats, summed. cut_runs: runs whose last tokens lay past their request's end.
    emitted_tokens: what the requests were given. late_runs: runs that came after their request was over, or was
    preempted, and were ignored. failed_runs: runs without finite numbers. preemptions: requests that gave their pages
    up and were computed again.

    Always `emitted_tokens = first_tokens + iterations + accepted - cut_runs`, and the iterations, drafts and accepted
    drafts of all requests' SpecStats add up to those here.
    """

    steps: int = 0
    prefill_tokens: int = 0
    cached_prompt_tokens: int = 0
    first_tokens: int = 0
    iterations: int = 0
    drafted_per_depth: tuple[int, ...] = ()
    accepted_per_depth: tuple[int, ...] = ()
    cut_runs: int = 0
    emitted_tokens: int = 0
    late_runs: int = 0
    failed_runs: int = 0
    preemptions: int = 0

    @property
    def drafted(self) -> int:
        return sum(self.drafted_per_depth)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_per_depth)

    @property
    def accept_length(self) -> float:
        """Mean tokens per run, bonus included; 0.0 before the first run."""
        return (self.emitted_tokens - self.first_tokens) / self.iterations if self.iterations else 0.0


class EngineCounters:
    """Grows with what the scheduler plans and reads; `freeze` gives the user's EngineStats."""

    def __init__(self) -> None:
        self.steps = 0
        self.prefill_tokens = 0
        self.cached_prompt_tokens = 0
        self.late_runs = 0
        self.failed_runs = 0
        self.preemptions = 0
        self._first_tokens = 0
        self._emitted = 0
        self._cut_runs = 0
        self._depths = DepthCounter()

    def seeded(self, *, kept: int) -> None:
        """A prompt's last chunk was read; `kept` is 0 where its numbers were not finite."""
        self._first_tokens += kept
        self._emitted += kept
        self.failed_runs += not kept

    def ran(self, *, drafted: int, committed: int, kept: int) -> None:
        """A run was given to its request; `kept` is 0 where its numbers were not finite."""
        if not kept:
            self.failed_runs += 1
            return
        self._depths.record(drafted=drafted, committed=committed, kept=kept)
        self._emitted += kept
        self._cut_runs += kept < committed

    def freeze(self) -> EngineStats:
        return EngineStats(
            steps=self.steps,
            prefill_tokens=self.prefill_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            first_tokens=self._first_tokens,
            iterations=self._depths.runs,
            drafted_per_depth=self._depths.drafted,
            accepted_per_depth=self._depths.accepted,
            cut_runs=self._cut_runs,
            emitted_tokens=self._emitted,
            late_runs=self.late_runs,
            failed_runs=self.failed_runs,
            preemptions=self.preemptions,
        )
