"""Between an engine's loop and its scheduler: every step and every result, with the requests that they are about.

Keeps what each request knew at every iteration, and checks what can be told from steps alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from frostline.engine.batch import Batch
from frostline.engine.request import Request
from frostline.speculative.plan import Plan
from frostline.speculative.step import RowInit, RunResult, StepResult
from frostline.types import GROUPS, Group
from tests.fuzz.tables import POISON


@dataclass(frozen=True, kw_only=True)
class Run:
    """One iteration of one request on the device. tokens: those known before it, the bonus last."""

    tokens: tuple[int, ...]
    plan: Plan
    result: RunResult


@dataclass(kw_only=True)
class Track:
    """A request from one admission on, as the device sees it. runs: all of them, those that came late too.

    resumes: it was preempted before and has its bonus token already.
    """

    request: Request
    init: RowInit
    tokens: list[int]
    resumes: bool
    known_at_first: int = field(init=False)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known_at_first = len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A launched batch, whose rows are whose, and the pages that these held then."""

    batch: Batch
    owners: dict[int, Track]
    held: dict[int, list[tuple[Group, int]]]

    def pages_of_those_who_left(self) -> list[tuple[Group, int]]:
        return [page for row, pages in self.held.items() if self.batch.current(row) is None for page in pages]


class Observer:
    """Sees every step and every result of a scheduler, with the requests that they are about."""

    def __init__(self, scheduler: Any, page_size: int) -> None:
        self.tracks: list[Track] = []
        self.evicted = self.shared = 0
        self._page_size = page_size
        self._salts: dict[tuple[Group, int], str | None] = {}
        self._by_row: dict[int, Track] = {}
        self._schedule, self._update = scheduler.schedule, scheduler.update
        self._in_flight: dict[int, Flight] = {}
        scheduler.schedule, scheduler.update = self.schedule, self.update

    def schedule(self) -> Batch | None:
        batch: Batch | None = self._schedule()
        if batch is not None:
            self._check_pages(batch)
            self.evicted += sum(write.pages.count(0) for write in batch.step.tables)
            for init in batch.step.inits:
                request = batch.requests[init.row]
                tokens = [*request.prompt_ids, *request.output_ids]
                self._by_row[init.row] = Track(
                    request=request, init=init, tokens=tokens, resumes=bool(request.output_ids)
                )
                self.tracks.append(self._by_row[init.row])
            stays = batch.stays.items()
            held = {row: [(group, page) for group in GROUPS for page in stay.held(group)] for row, stay in stays}
            owners = {row: self._by_row[row] for row in batch.requests}
            self._in_flight[id(batch)] = Flight(batch=batch, owners=owners, held=held)
        return batch

    def update(self, batch: Batch, result: StepResult) -> list[Request]:
        owners = self._in_flight.pop(id(batch)).owners
        for seed in result.seeds:
            track = owners[seed.row]
            if not track.resumes:
                track.tokens.append(seed.token)
            elif seed.finite:
                assert seed.token == track.tokens[-1], "a streamed bonus was sampled again"
            self._must_be_finite(owners[seed.row], finite=seed.finite)
        for run in result.runs:
            track = owners[run.row]
            track.runs.append(Run(tokens=tuple(track.tokens), plan=batch.step.plan, result=run))
            track.tokens.extend(run.tokens)
            self._must_be_finite(track, finite=run.finite)
        finished: list[Request] = self._update(batch, result)
        return finished

    def _check_pages(self, batch: Batch) -> None:
        """Whoever takes over a page has the salt that it was given for, and what may still be written is not given."""
        found = {chunk.row: chunk.start for chunk in batch.step.prefill}
        admitted = {init.row for init in batch.step.inits}
        written = [page for flight in self._in_flight.values() for page in flight.pages_of_those_who_left()]
        for write in batch.step.tables:
            salt = batch.requests[write.row].params.cache_salt
            taken = found[write.row] // self._page_size if write.row in admitted else 0
            for index, page in enumerate(write.pages, start=write.start):
                if page and index < taken:
                    self.shared += 1
                    assert self._salts[write.group, page] == salt, "pages of another salt"
                elif page:
                    assert (write.group, page) not in written, "a page was given away while work on it was in flight"
                    self._salts[write.group, page] = salt

    def _must_be_finite(self, track: Track, *, finite: bool) -> None:
        sick = POISON in track.request.prompt_ids
        assert finite or sick, f"{track.request.request_id}: a canary is dead, or NaN came from another request"
