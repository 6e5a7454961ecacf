"""What the next tick does: whom to admit, which prompt tokens to prefill, which rows to iterate; and what it meant.

Knows requests, rows and pages; no tensors, no text. Continuous batching: a request joins and leaves at any tick,
prefill and iteration share a step, the waiting queue is first in, first out and nobody overtakes its head.

What was scheduled and what has returned are kept apart in the requests, so `schedule` is right with a step in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from frostline.engine.admission import Admission
from frostline.engine.finish import Finish
from frostline.engine.planner import Planner
from frostline.engine.request import Request
from frostline.engine.rules import resumed
from frostline.engine.stats import EngineCounters
from frostline.speculative.step import PageGrowth, PrefillChunk, RowInit, Step, StepResult


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One tick's work: the step for the device, and the requests its rows stand for.

    The requests travel with the work because a row may have another owner by the time its result is read.
    """

    step: Step
    requests: Mapping[int, Request]


class Scheduler:
    """Holds every request that is not over: waiting in arrival order, running by row in admission order."""

    def __init__(self, admission: Admission, planner: Planner, *, max_prefill_tokens: int) -> None:
        self._admission = admission
        self._planner = planner
        self._max_prefill_tokens = max_prefill_tokens
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self.counters = EngineCounters()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def schedule(self) -> Batch | None:
        """The next step, or None when there is nothing to do before a step in flight returns."""
        iterating = [request for request in self._running.values() if request.wants_iteration]
        inits: list[RowInit] = []
        growth: list[PageGrowth] = []
        chunks: list[PrefillChunk] = []
        budget = self._max_prefill_tokens
        for request in self._prefilling(inits, growth):
            chunk = request.logprobs.scored(_next_chunk(request, budget))
            chunks.append(chunk)
            budget -= len(chunk.tokens)
            if budget == 0:
                break
        if not iterating and not chunks:
            if not self.is_idle and not any(request.due_least for request in self._running.values()):
                raise AssertionError(f"{len(self._waiting)} requests wait for pages or rows that nobody will release")
            return None
        prefilling = [self._running[chunk.row] for chunk in chunks]
        plan = self._planner.plan(iterating, prefilling=prefilling)
        step = Step(
            scrub=self._admission.take_spoiled(),
            inits=tuple(inits),
            growth=tuple(growth),
            prefill=tuple(chunks),
            rows=tuple(request.row for request in iterating),
            plan=plan,
            kv_bound=max((self._rows_needed(request, plan.verify_width) for request in iterating), default=0),
        )
        for request in iterating:
            request.expect(min(request.depth, plan.num_steps) + 1)
        for chunk in chunks:
            if chunk.last:
                self._running[chunk.row].expect(1)
        requests = {request.row: request for request in (*iterating, *prefilling)}
        return Batch(step=step, requests=MappingProxyType(requests))

    def update(self, batch: Batch, result: StepResult) -> list[Request]:
        """Give each row's tokens to its request; those that ended are released and returned.

        A request that was over before is not touched again: its run comes late and is only counted.
        """
        runs = [run for run in result.runs if not batch.requests[run.row].is_finished]
        self.counters.steps += 1
        self.counters.prefill_tokens += sum(len(chunk.tokens) for chunk in batch.step.prefill)
        self.counters.late_runs += len(result.runs) - len(runs)
        self._planner.observe(batch.step.plan, runs)
        finished: list[Request] = []
        for prompt in result.prompts:
            batch.requests[prompt.row].logprobs.keep_prompt(prompt)
        for seed in result.seeds:
            request = batch.requests[seed.row]
            if not request.is_finished:
                self.counters.seeded(kept=request.accept_seed(seed.token, finite=seed.finite, logprobs=seed.logprobs))
                self._retire(request, finished)
        for run in runs:
            request = batch.requests[run.row]
            kept = request.accept_run(run.tokens, drafted=run.drafted, finite=run.finite, logprobs=run.logprobs)
            self.counters.ran(drafted=run.drafted, committed=len(run.tokens), kept=kept)
            self._retire(request, finished)
        return finished

    def abort(self, request_id: str) -> Request | None:
        """End a request wherever it is, keeping the tokens it has; None if it is not here (any more)."""
        for request in (*self._waiting, *self._running.values()):
            if request.request_id == request_id:
                request.end(Finish(reason="abort"))
                if request.row:
                    self._retire(request, [])
                else:
                    self._waiting.remove(request)
                return request
        return None

    def unfinished(self) -> Iterable[Request]:
        return (*self._running.values(), *self._waiting)

    def check(self) -> None:
        """Integrity of rows and pages: every one is free or held by a running request."""
        self._admission.check(self._running.values())

    def _rows_needed(self, request: Request, width: int) -> int:
        """KV rows that an iteration of this width may reach, whatever the step in flight returns."""
        rows = request.most_committed + width
        self._admission.require(request, rows)
        return rows

    def _prefilling(self, inits: list[RowInit], growth: list[PageGrowth]) -> Iterator[Request]:
        """Requests with prompt tokens to prefill, oldest first; the waiting are admitted only as far as one asks."""
        yield from [request for request in self._running.values() if request.unscheduled]
        while self._waiting:
            pages = self._admission.admit(self._waiting[0])
            if pages is None:
                return
            request = self._waiting.popleft()
            self._running[request.row] = request
            inits.append(_row_init(request))
            growth.extend(pages)
            yield request

    def _retire(self, request: Request, finished: list[Request]) -> None:
        if request.is_finished:
            del self._running[request.row]
            self._admission.release(request)
            finished.append(request)


def _next_chunk(request: Request, budget: int) -> PrefillChunk:
    start = request.scheduled
    tokens = request.prompt_ids[start : start + budget]
    request.scheduled = start + len(tokens)
    return PrefillChunk(row=request.row, start=start, tokens=tokens, last=request.unscheduled == 0)


def _row_init(request: Request) -> RowInit:
    params = request.params
    return RowInit(
        row=request.row,
        prompt_len=request.prompt_len,
        seed=request.seed,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        depth=request.depth,
        rules=resumed(request.logit_rules, request.output_ids),
    )
