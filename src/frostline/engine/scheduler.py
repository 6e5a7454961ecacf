"""What the next tick does: whom to admit, which tokens to prefill, which rows to iterate; and what it meant.

Knows requests, rows and pages; no tensors, no text. Continuous batching: a request joins and leaves at any tick,
prefill and iteration share a step, the waiting queue is first in, first out and nobody overtakes its head.

What was scheduled and what has returned are kept apart in the requests' stays, so `schedule` is right with a step in
flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import MappingProxyType

from frostline.engine.admission import Admission
from frostline.engine.batch import Batch, next_chunk, row_init
from frostline.engine.finish import Finish
from frostline.engine.planner import Planner
from frostline.engine.preemption import Pressure
from frostline.engine.request import Request
from frostline.engine.stats import EngineCounters
from frostline.speculative.step import PrefillChunk, RowInit, Step, StepResult


class Scheduler:
    """Holds every request that is not over: waiting and running, both in order of arrival."""

    def __init__(self, admission: Admission, planner: Planner, *, max_prefill_tokens: int) -> None:
        self._admission = admission
        self._planner = planner
        self._max_prefill_tokens = max_prefill_tokens
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self.counters = EngineCounters()
        self._pressure = Pressure(
            admission=admission, counters=self.counters, running=self._running, waiting=self._waiting
        )

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def schedule(self) -> Batch | None:
        """The next step, or None when there is nothing to do before a step in flight returns."""
        if self._is_known_soon():
            self._check_progress()
            return None
        self._pressure.begin()
        iterating: list[Request] = []
        chunks: list[PrefillChunk] = []
        budget, width = self._max_prefill_tokens, self._planner.speculative.verify_width
        for request in list(self._running.values()):
            # Whoever was preempted for an older one wants neither any more.
            if request.wants_iteration:
                if request.is_likely_over:
                    continue
                rows = request.most_committed + width
                if self._pressure.secure(request, least=rows, most=rows):
                    iterating.append(request)
            elif budget and request.wants_prefill:
                budget -= self._prefill(request, budget, chunks)
        inits: list[RowInit] = []
        while budget and self._waiting and self._admit(self._waiting[0], chunks):
            request = self._waiting.popleft()
            self._running[request.row] = request
            request.cached_tokens += request.on_device.prefilled
            self.counters.cached_prompt_tokens += request.on_device.prefilled
            inits.append(row_init(request))
            budget -= self._prefill(request, budget, chunks)
        if not iterating and not chunks:
            self._check_progress()
            return None
        return self._batch(iterating, chunks, inits)

    def update(self, batch: Batch, result: StepResult) -> list[Request]:
        """Give each row's tokens to its request; those that ended are released and returned.

        A request that was over or preempted before is not touched: its result comes late and is only counted.
        """
        self.counters.steps += 1
        self.counters.prefill_tokens += sum(len(chunk.tokens) for chunk in batch.step.prefill)
        for stay in batch.stays.values():
            stay.in_flight -= 1
        finished = self._update_prefill(batch, result)
        runs = [run for run in result.runs if batch.current(run.row) is not None]
        self._planner.observe(batch.step.plan, runs)
        self.counters.late_runs += len(result.runs) - len(runs)
        for run in result.runs:
            owner = batch.current(run.row)
            if owner is not None:
                kept = owner.accept_run(run.tokens, drafted=run.drafted, finite=run.finite, logprobs=run.logprobs)
                self.counters.ran(drafted=run.drafted, committed=len(run.tokens), kept=kept)
                self._retire(owner, finished)
            elif not run.finite:
                self._admission.pages.spoil(batch.stays[run.row])
        self._admission.release_drained()
        return finished

    def abort(self, request_id: str) -> Request | None:
        """End a request wherever it is, keeping the tokens it has; None if it is not here (any more)."""
        for request in (*self._waiting, *self._running.values()):
            if request.request_id == request_id:
                request.end(Finish(reason="abort"))
                if request.stay is not None:
                    self._retire(request, [])
                else:
                    self._waiting.remove(request)
                return request
        return None

    def forget_in_flight(self) -> None:
        """Nobody will bring what is in flight, for requests that are all over."""
        self._admission.release_drained(lost=True)

    def unfinished(self) -> Iterable[Request]:
        return (*self._running.values(), *self._waiting)

    def check(self) -> None:
        """Integrity of rows and pages: every one is free or held by a request that runs or whose work is in flight."""
        self._admission.check(self._running.values())

    def _update_prefill(self, batch: Batch, result: StepResult) -> list[Request]:
        """Chunks and first tokens; the requests that ended with theirs."""
        finished: list[Request] = []
        failed = {seed.row for seed in result.seeds if not seed.finite}
        for chunk in batch.step.prefill:
            owner = batch.current(chunk.row)
            if owner is not None and chunk.row not in failed:
                owner.accept_chunk(chunk.start + len(chunk.tokens))
        for prompt in result.prompts:
            batch.requests[prompt.row].logprobs.keep_prompt(prompt)
        for seed in result.seeds:
            owner = batch.current(seed.row)
            if owner is not None:
                resumes = bool(owner.output_ids) and seed.finite
                kept = owner.accept_seed(seed.token, finite=seed.finite, logprobs=seed.logprobs)
                if not resumes:
                    self.counters.seeded(kept=kept)
                self._retire(owner, finished)
            elif not seed.finite:
                self._admission.pages.spoil(batch.stays[seed.row])
        return finished

    def _is_known_soon(self) -> bool:
        """Whether a step would hold nothing but runs that may come late: what is in flight tells, and is awaited."""
        if self._waiting or any(request.wants_prefill for request in self._running.values()):
            return False
        return all(request.may_be_over or not request.wants_iteration for request in self._running.values())

    def _admit(self, request: Request, chunks: list[PrefillChunk]) -> bool:
        """A sample waits until the prompt that it shares with sample 0 is written by a step before its own."""
        parent = request.parent
        if parent is not None and (parent.wants_prefill or any(chunk.row == parent.row for chunk in chunks)):
            return False
        if self._pressure.is_short or not self._admission.rows.num_free:
            return False
        return self._admission.admit(request, promised=self._pressure.promised())

    def _prefill(self, request: Request, budget: int, chunks: list[PrefillChunk]) -> int:
        """Tokens of the request's next chunk: what it lacks, as far as the budget and the pages go."""
        stay = request.on_device
        most = stay.scheduled + min(budget, stay.unscheduled)
        rows = self._pressure.secure(request, least=stay.scheduled + 1, most=most)
        if not rows:
            return 0
        chunks.append(next_chunk(request, rows - stay.scheduled))
        return len(chunks[-1].tokens)

    def _batch(self, iterating: list[Request], chunks: list[PrefillChunk], inits: list[RowInit]) -> Batch:
        prefilling = [self._running[chunk.row] for chunk in chunks]
        plan = self._planner.plan(iterating, prefilling=prefilling)
        requests = {request.row: request for request in (*iterating, *prefilling)}
        stays = {row: request.on_device for row, request in requests.items()}
        step = Step(
            scrub=self._admission.pages.take_scrubs(),
            inits=tuple(inits),
            tables=tuple(write for stay in stays.values() for write in stay.take_writes()),
            copies=tuple(copy for stay in stays.values() for copy in stay.take_copies()),
            prefill=tuple(chunks),
            rows=tuple(request.row for request in iterating),
            plan=plan,
            kv_bound=max((request.most_committed + plan.verify_width for request in iterating), default=0),
        )
        for request in iterating:
            request.expect(min(request.depth, plan.num_steps) + 1)
        for stay in stays.values():
            stay.in_flight += 1
        for request in prefilling:
            # From the next step on: within one step nobody reads what another row's chunk writes.
            self._admission.reuse.keep(request, request.on_device.scheduled)
        return Batch(step=step, requests=MappingProxyType(requests), stays=MappingProxyType(stays))

    def _check_progress(self) -> None:
        in_flight = any(request.on_device.in_flight for request in self._running.values())
        if not self.is_idle and not in_flight and not self._admission.is_draining:
            raise AssertionError(
                f"{len(self._running)} running and {len(self._waiting)} waiting requests lack pages or rows that "
                f"nobody will release"
            )

    def _retire(self, request: Request, finished: list[Request]) -> None:
        if request.is_finished:
            del self._running[request.row]
            self._admission.leave(request)
            finished.append(request)
