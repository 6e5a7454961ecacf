"""Between engine and device: what each request knew, what was drafted for it, what it got, iteration by iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from frostline.speculative.executor import DeviceExecutor, InFlight
from frostline.speculative.plan import Plan
from frostline.speculative.step import RowInit, RunResult, Step, StepResult
from frostline.types import Group


@dataclass(frozen=True)
class Iteration:
    """One run of one request. known: its tokens before, `P + 1` of them."""

    known: int
    plan: Plan
    run: RunResult


@dataclass
class Track:
    """One request, in order of admission. tokens: everything the device was told or returned."""

    init: RowInit
    tokens: list[int] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)


class RecordingExecutor:
    """An Executor around the device side that keeps tracks.

    The sliding group's page numbers are turned round on their way, so that the two groups of a request never have the
    same pages: the allocator alone would give both the same numbers, and a mix-up of the groups would not show.
    """

    def __init__(self, inner: DeviceExecutor) -> None:
        self._inner = inner
        self.num_rows, self.page_size = inner.num_rows, inner.page_size
        self.num_pages: Mapping[Group, int] = inner.num_pages
        self.window, self.max_context, self.verify_width = inner.window, inner.max_context, inner.verify_width
        self.tracks: list[Track] = []
        self._by_row: dict[int, Track] = {}

    def launch(self, step: Step) -> tuple[InFlight, Mapping[int, Track]]:
        for init in step.inits:
            self._by_row[init.row] = Track(init)
            self.tracks.append(self._by_row[init.row])
        for chunk in step.prefill:
            self._by_row[chunk.row].tokens.extend(chunk.tokens)
        # The owners travel with the step: its rows may have others by the time that it is collected.
        owners = {row: self._by_row[row] for row in (*(chunk.row for chunk in step.prefill), *step.rows)}
        return self._inner.launch(self._turned(step)), owners

    def _turned(self, step: Step) -> Step:
        def turn(group: Group, pages: Sequence[int]) -> tuple[int, ...]:
            most = self.num_pages[group]
            return tuple(most - page if page and group == "sliding" else page for page in pages)

        return replace(
            step,
            scrub=tuple(
                replace(one, pages={g: turn(g, pages) for g, pages in one.pages.items()}) for one in step.scrub
            ),
            tables=tuple(replace(one, pages=turn(one.group, one.pages)) for one in step.tables),
            copies=tuple(
                replace(one, source=source, destination=destination)
                for one in step.copies
                for source, destination in [turn(one.group, (one.source, one.destination))]
            ),
        )

    def collect(self, flight: tuple[InFlight, Mapping[int, Track]]) -> StepResult:
        launched, owners = flight
        result = self._inner.collect(launched)
        for seed in result.seeds:
            owners[seed.row].tokens.append(seed.token)
        for run in result.runs:
            track = owners[run.row]
            track.iterations.append(Iteration(known=len(track.tokens), plan=launched.step.plan, run=run))
            track.tokens.extend(run.tokens)
        return result
