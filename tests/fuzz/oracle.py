"""Plays a mix: overlapped, synchronously, and one request at a time without drafts; all must give the same.

Beside the tokens it looks at what equal tokens would hide: the canaries of every forward, the drafted nodes of every
run against the reference drafter, the counters against a replay, and that no page, row or request is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from frostline.config import EngineConfig, Schedule, SpeculativeConfig
from frostline.engine.engine import Engine
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.engine.scheduler import Batch
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.plan import Plan
from frostline.speculative.step import Executor, RunResult, StepResult
from frostline.speculative.worker import WorkerExecutor
from frostline.types import CompletionOutput, RequestOutput
from tests.equality.drafter import Shape, accepted_of
from tests.fuzz.device import Lagging, Tight
from tests.fuzz.fake_pair import FakeAssistant, FakeTarget, fake_pair
from tests.fuzz.mix import CONTEXT, Ask, Machine, Mix
from tests.fuzz.reference import Rule, draft
from tests.fuzz.tables import EOS, POISON, VOCAB, Letters

LIMIT = 3000


@dataclass(frozen=True, kw_only=True)
class Run:
    """One iteration of one request on the device. tokens: those known before it, the bonus last."""

    tokens: tuple[int, ...]
    plan: Plan
    result: RunResult


@dataclass(kw_only=True)
class Track:
    """A request from one admission on, as the device sees it. runs: all of them, those that came late too."""

    request: Request
    tokens: list[int]
    runs: list[Run] = field(default_factory=list)


class Observer:
    """Sees every step and every result of a scheduler, with the requests that they are about."""

    def __init__(self, scheduler: Any) -> None:
        self.tracks: list[Track] = []
        self._by_row: dict[int, Track] = {}
        self._schedule, self._update = scheduler.schedule, scheduler.update
        self._owners: dict[int, dict[int, Track]] = {}
        scheduler.schedule, scheduler.update = self.schedule, self.update

    def schedule(self) -> Batch | None:
        batch: Batch | None = self._schedule()
        if batch is not None:
            for init in batch.step.inits:
                request = batch.requests[init.row]
                self._by_row[init.row] = Track(request=request, tokens=[*request.prompt_ids, *request.output_ids])
                self.tracks.append(self._by_row[init.row])
            self._owners[id(batch)] = {row: self._by_row[row] for row in batch.requests}
        return batch

    def update(self, batch: Batch, result: StepResult) -> list[Request]:
        owners = self._owners.pop(id(batch))
        for seed in result.seeds:
            owners[seed.row].tokens.append(seed.token)
            self._must_be_finite(owners[seed.row], finite=seed.finite)
        for run in result.runs:
            track = owners[run.row]
            track.runs.append(Run(tokens=tuple(track.tokens), plan=batch.step.plan, result=run))
            track.tokens.extend(run.tokens)
            self._must_be_finite(track, finite=run.finite)
        finished: list[Request] = self._update(batch, result)
        return finished

    def _must_be_finite(self, track: Track, *, finite: bool) -> None:
        sick = POISON in track.request.prompt_ids
        assert finite or sick, f"{track.request.request_id}: a canary is dead, or NaN came from another request"


@dataclass(frozen=True, kw_only=True)
class Played:
    outputs: list[RequestOutput]
    tracks: list[Track]
    late: int


@dataclass(frozen=True, kw_only=True)
class Fakes:
    """A fake pair on a real device side of its own."""

    device: DeviceExecutor
    target: FakeTarget
    assistant: FakeAssistant

    def reset(self) -> None:
        """For the next engine on it, which knows nothing of what the last one had still to scrub."""
        self.target.faults.clear()
        self.assistant.faults.clear()
        for pool in self.device._cache.pools.values():
            pool.rows.nan_to_num_(0.0)
        self.device._rows.hidden.zero_()


def fakes(machine: Machine) -> Fakes:
    """The device side of a machine; all that record share one, since recordings take longer than cases."""
    if machine.recorded:
        most = 2 * -(-(CONTEXT + 2 * machine.speculative.verify_width) // machine.page_size)
        return _shared(replace(machine, sliding_pages=most, full_pages=most, budget=1))
    return _own(machine)


@cache
def _shared(machine: Machine) -> Fakes:
    return _own(machine)


def _own(machine: Machine) -> Fakes:
    pair, target, assistant = fake_pair(window=machine.window, offset=machine.offset, narrow=machine.narrow)
    config = _config(
        machine,
        kv_pages=max(machine.sliding_pages, machine.full_pages),
        capture_after=2 if machine.recorded else None,
    )
    device = DeviceExecutor(pair, speculative=machine.speculative, engine=config, record_nodes=True)
    return Fakes(device=device, target=target, assistant=assistant)


def _config(machine: Machine, **options: Any) -> EngineConfig:
    return EngineConfig(
        max_num_seqs=machine.rows,
        max_model_len=CONTEXT,
        page_size=machine.page_size,
        max_prefill_tokens=machine.budget,
        **options,
    )


def play(mix: Mix, schedule: Schedule, wrap: Callable[[Any], Any]) -> Played:
    """One run of a mix, with everything checked that does not need another run."""
    machine, on = mix.machine, fakes(mix.machine)
    device = wrap(Tight(on.device, {"sliding": machine.sliding_pages, "full": machine.full_pages}))
    engine = _engine(device, machine.speculative, _config(machine, schedule=schedule))
    observer = Observer(engine.loop._scheduler)
    requests = [engine.request(ask.prompt, ask.params) for ask in mix.asks]
    try:
        drive(engine, requests, mix.asks)
    finally:
        if isinstance(device, WorkerExecutor):
            device.close()
        faults = [*on.target.faults, *on.assistant.faults]
        on.reset()
    assert faults == [], faults[:5]
    for track in observer.tracks:
        check_drafts(track, narrow=machine.narrow)
    for request in requests:
        check_counters(request, [track for track in observer.tracks if track.request is request])
    return Played(
        outputs=[request.output() for request in requests], tracks=observer.tracks, late=engine.loop.late_runs
    )


def _engine(device: Executor, speculative: SpeculativeConfig, config: EngineConfig) -> Engine:
    return Engine(
        device,
        speculative=speculative,
        config=config,
        decoder=Letters(),
        eos_token_ids=EOS,
        vocab_size=VOCAB,
        offset=DraftOffset("P"),
    )


def drive(engine: Engine, requests: Sequence[Request], asks: Sequence[Ask]) -> None:
    """Ticks until all are over, requests arriving and giving up on their ticks; integrity after every one."""
    pairs, tick, arrived = list(zip(requests, asks, strict=True)), 0, 0
    while arrived < len(pairs) or not engine.loop.is_idle:
        for request, ask in pairs:
            if ask.tick == tick:
                engine.loop.add(request)
                arrived += 1
            if ask.abort is not None and ask.tick + ask.abort == tick and not request.is_finished:
                engine.loop.abort(request.request_id)
        engine.loop.tick()
        engine.loop.check()
        tick += 1
        assert tick < LIMIT, "no progress"
    assert all(request.is_finished and not request.row for request in requests)


def check_drafts(track: Track, *, narrow: bool) -> None:
    """Every run's nodes are the reference drafter's, and so is what was accepted of them."""
    request = track.request
    if POISON in request.prompt_ids:
        return
    params = request.params
    rule = Rule(request.seed, params.temperature, max(params.top_k, 0), params.top_p, params.min_p, request.depth)
    for run in track.runs:
        plan, nodes = run.plan, run.result.nodes
        shape = Shape(plan.num_steps, plan.topk, plan.verify_width, plan.draft_offset, plan.coupled)
        expected = draft(run.tokens, shape, rule, narrow=narrow)
        assert nodes is not None and (nodes.tokens, nodes.parents) == expected, (request.request_id, nodes, expected)
        cap = min(request.depth, plan.num_steps)
        accepted = accepted_of(expected, run.result.tokens, cap)
        assert (run.result.drafted, len(run.result.tokens) - 1) == (cap, accepted), request.request_id


def check_counters(request: Request, tracks: Sequence[Track]) -> None:
    """The user's counters equal a replay of the runs that were given to the user."""
    output = request.output()
    stats, emitted = output.stats, len(output.outputs[0].token_ids)
    assert emitted == (1 if emitted else 0) + sum(stats.run_lengths), request.request_id
    if POISON in request.prompt_ids or len(tracks) != 1:
        return
    drafted, accepted, lengths = [0] * 9, [0] * 9, []
    left = emitted - 1
    for run in tracks[0].runs:
        if left <= 0:
            break
        kept = min(len(run.result.tokens), left)
        left -= kept
        lengths.append(kept)
        for depth in range(run.result.drafted if kept == len(run.result.tokens) else kept):
            drafted[depth] += 1
        for depth in range(min(len(run.result.tokens) - 1, kept)):
            accepted[depth] += 1
    depths = len(stats.drafted_per_depth)
    assert tuple(lengths) == stats.run_lengths
    assert (tuple(drafted[:depths]), any(drafted[depths:])) == (stats.drafted_per_depth, False)
    assert (tuple(accepted[:depths]), any(accepted[depths:])) == (stats.accepted_per_depth, False)


# --------------------------------------------------------------------------------------------- one at a time


class Plain:
    """One request at a time, one token per step, more pages than anyone needs, nothing kept from one to the next."""

    def __init__(self) -> None:
        pair, _, _ = fake_pair(window=6, checked=False)
        config = EngineConfig(max_num_seqs=1, max_model_len=CONTEXT, page_size=4, schedule="sync", capture_after=16)
        speculative = SpeculativeConfig(num_steps=0)
        self._engine = _engine(DeviceExecutor(pair, speculative=speculative, engine=config), speculative, config)

    def __call__(self, ask: Ask) -> RequestOutput:
        request = self._engine.request(ask.prompt, replace(ask.params, num_steps=None))
        self._engine.run([request], on_finish=lambda request: None)
        return request.output()


@cache
def plain() -> Plain:
    return Plain()


# --------------------------------------------------------------------------------------------- all three


WRAPS: tuple[Callable[[Any], Any], ...] = (Lagging, WorkerExecutor, lambda device: device)


def told(one: CompletionOutput) -> tuple[Any, ...]:
    return one.token_ids, one.finish_reason, one.stop_reason, one.text


def expected(mix: Mix) -> list[RequestOutput]:
    """What every request must give."""
    return [plain()(ask) for ask in mix.asks]


def check(mix: Mix, wanted: Sequence[RequestOutput] | None = None) -> tuple[Played, Played]:
    """Everything that must hold for one mix; (sync, overlapped). wanted: `expected(mix)`, if it is known already."""
    wanted = expected(mix) if wanted is None else wanted
    sync = play(mix, "sync", lambda device: device)
    overlap = play(mix, "overlap", WRAPS[mix.seed % len(WRAPS)])
    for played in (sync, overlap):
        for number, (found, one) in enumerate(zip(played.outputs, wanted, strict=True)):
            _same(number, mix.asks[number], found, one)
    assert sync.late == 0
    return sync, overlap


def _same(number: int, ask: Ask, found: RequestOutput, wanted: RequestOutput) -> None:
    ours, theirs = found.outputs[0], wanted.outputs[0]
    assert found.prompt_token_ids == ask.prompt
    if ask.abort is not None and ours.finish_reason == "abort":
        assert ours.token_ids == theirs.token_ids[: len(ours.token_ids)], number
        return
    assert told(ours) == told(theirs), (number, told(ours), told(theirs))
