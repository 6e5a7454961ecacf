"""Plays a mix: overlapped, synchronously, and one request at a time without drafts; all must give the same.

Beside the tokens it looks at what equal tokens would hide: the canaries of every forward, the drafted nodes of every
run against the reference drafter, the counters against a replay, and that no page, row or request is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

from frostline.config import EngineConfig, Schedule, SpeculativeConfig
from frostline.engine.engine import Engine
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.engine.stats import EngineStats
from frostline.speculative.checked import CheckedExecutor
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import Executor
from frostline.speculative.worker import WorkerExecutor
from frostline.types import CompletionOutput, Logprobs, RequestOutput
from tests.equality.drafter import Shape, accepted_of
from tests.fuzz.device import Lagging, Tight
from tests.fuzz.fake_pair import FakeAssistant, FakeTarget, fake_pair
from tests.fuzz.mix import CONTEXT, Ask, Machine, Mix
from tests.fuzz.observer import Observer, Track
from tests.fuzz.reference import Rule, draft, logprobs, next_token
from tests.fuzz.tables import ALARM, EOS, POISON, VOCAB, Letters

LIMIT = 3000


@dataclass(frozen=True, kw_only=True)
class Played:
    """evicted: pages that left a window; shared: those that a request took over from others."""

    outputs: list[RequestOutput]
    tracks: list[Track]
    stats: EngineStats
    evicted: int
    shared: int


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
        most = 4 * -(-(CONTEXT + 2 * machine.speculative.verify_width) // machine.page_size)
        return _shared(replace(machine, sliding_pages=most, full_pages=most, budget=1, suppressed=()))
    return _own(machine)


@cache
def _shared(machine: Machine) -> Fakes:
    return _own(machine)


def _own(machine: Machine) -> Fakes:
    position = machine.speculative.draft_position
    pair, target, assistant = fake_pair(window=machine.window, position=position, narrow=machine.narrow)
    config = _config(
        machine,
        kv_pages=machine.full_pages,
        sliding_kv_pages=machine.sliding_pages,
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
        prefix_cache=machine.cache,
        **options,
    )


def play(mix: Mix, schedule: Schedule, wrap: Callable[[Any], Any]) -> Played:
    """One run of a mix, with everything checked that does not need another run."""
    machine, on = mix.machine, fakes(mix.machine)
    tight = Tight(on.device, {"sliding": machine.sliding_pages, "full": machine.full_pages})
    # The highest id is what a recorded draft says when its canaries are dead.
    device = wrap(CheckedExecutor(tight, vocab_size=ALARM))
    engine = _engine(device, machine.speculative, _config(machine, schedule=schedule), machine.suppressed)
    observer = Observer(engine.loop._scheduler, machine.page_size)
    asked = [(request, ask) for ask in mix.asks for request in engine.samples(ask.prompt, ask.params)]
    requests = [request for request, _ in asked]
    try:
        drive(engine, asked)
    except AssertionError as failure:
        raise AssertionError(f"{failure} {[*on.target.faults, *on.assistant.faults][:5]}") from failure
    finally:
        if isinstance(device, WorkerExecutor):
            device.close()
        faults = [*on.target.faults, *on.assistant.faults]
        on.reset()
    assert faults == [], faults[:5]
    for track in observer.tracks:
        check_drafts(track, machine)
    for request in requests:
        check_counters(request, [track for track in observer.tracks if track.request is request])
    played = Played(
        outputs=[request.output() for request in requests],
        tracks=observer.tracks,
        stats=engine.loop.stats(),
        evicted=observer.evicted,
        shared=observer.shared,
    )
    check_stats(played, sick=any(POISON in ask.prompt for ask in mix.asks))
    return played


def _engine(
    device: Executor, speculative: SpeculativeConfig, config: EngineConfig, suppressed: tuple[int, ...]
) -> Engine:
    return Engine(
        device,
        speculative=speculative,
        config=config,
        decoder=Letters(),
        eos_token_ids=EOS,
        vocab_size=VOCAB,
        offset=DraftOffset("auto"),
        suppress_token_ids=suppressed,
    )


def drive(engine: Engine, pairs: Sequence[tuple[Request, Ask]]) -> None:
    """Ticks until all are over, requests arriving and giving up on their ticks; integrity after every one."""
    tick = arrived = 0
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
    assert all(request.is_finished and not request.row for request, _ in pairs)


def check_drafts(track: Track, machine: Machine) -> None:
    """Every run's nodes are the reference drafter's, and so is what was accepted of them."""
    request = track.request
    if POISON in request.prompt_ids:
        return
    rule = _rule(request, machine.suppressed)
    for run in track.runs:
        plan, nodes = run.plan, run.result.nodes
        shape = Shape(plan.num_steps, plan.topk, plan.verify_width, plan.draft_offset, plan.coupled)
        expected = draft(run.tokens, shape, rule, narrow=machine.narrow)
        assert nodes is not None and (nodes.tokens, nodes.parents) == expected, (request.request_id, nodes, expected)
        cap = min(request.depth, plan.num_steps)
        accepted = accepted_of(expected, run.result.tokens, cap)
        assert (run.result.drafted, len(run.result.tokens) - 1) == (cap, accepted), request.request_id


def check_counters(request: Request, tracks: Sequence[Track]) -> None:
    """The user's counters equal a replay of the runs that were given to the user, over all stays on the device."""
    output = request.output()
    stats, emitted = output.stats, len(output.outputs[0].token_ids)
    assert emitted == bool(emitted) + sum(stats.run_lengths), request.request_id
    if POISON in request.prompt_ids:
        return
    drafted, accepted, lengths = [0] * 9, [0] * 9, []
    ends = [*(track.known_at_first for track in tracks[1:]), request.prompt_len + emitted]
    for track, end in zip(tracks, ends, strict=False):
        for run in track.runs:
            kept = min(len(run.result.tokens), end - len(run.tokens))
            if kept <= 0:
                break
            lengths.append(kept)
            for depth in range(run.result.drafted if kept == len(run.result.tokens) else kept):
                drafted[depth] += 1
            for depth in range(min(len(run.result.tokens) - 1, kept)):
                accepted[depth] += 1
    depths = len(stats.drafted_per_depth)
    assert tuple(lengths) == stats.run_lengths, (request.request_id, lengths, stats.run_lengths)
    assert (tuple(drafted[:depths]), any(drafted[depths:])) == (stats.drafted_per_depth, False)
    assert (tuple(accepted[:depths]), any(accepted[depths:])) == (stats.accepted_per_depth, False)


def check_stats(played: Played, *, sick: bool) -> None:
    """The engine's counters are the sum of its requests', and account for every run that the device made."""
    stats, outputs = played.stats, played.outputs
    given = [len(output.outputs[0].token_ids) for output in outputs]
    assert (stats.emitted_tokens, stats.first_tokens) == (sum(given), sum(map(bool, given)))
    assert stats.emitted_tokens == stats.first_tokens + stats.iterations + stats.accepted - stats.cut_runs
    assert stats.iterations == sum(output.stats.iterations for output in outputs)
    for depths in ("drafted_per_depth", "accepted_per_depth"):
        each = [getattr(output.stats, depths) for output in outputs]
        assert getattr(stats, depths) == tuple(map(sum, zip_longest(*each, fillvalue=0))), depths
    assert stats.cached_prompt_tokens == sum(output.num_cached_tokens for output in outputs)
    assert stats.preemptions == sum(output.num_preemptions for output in outputs)
    runs = sum(len(track.runs) for track in played.tracks)
    failed = runs - stats.iterations - stats.late_runs
    assert 0 <= failed <= stats.failed_runs if sick else failed == stats.failed_runs == 0
    assert stats.preemptions >= sum(track.resumes for track in played.tracks)


# --------------------------------------------------------------------------------------------- one at a time


class Plain:
    """One request at a time, one token per step, more pages than anyone needs, nothing kept from one to the next."""

    def __init__(self, suppressed: tuple[int, ...]) -> None:
        self._suppressed = suppressed
        pair, _, _ = fake_pair(window=6, checked=False)
        config = EngineConfig(
            max_num_seqs=1, max_model_len=CONTEXT, page_size=4, schedule="sync", capture_after=16, prefix_cache=False
        )
        speculative = SpeculativeConfig(num_steps=0)
        device = DeviceExecutor(pair, speculative=speculative, engine=config)
        self._engine = _engine(device, speculative, config, suppressed)

    def __call__(self, ask: Ask) -> list[RequestOutput]:
        """What each sample gives."""
        samples = self._engine.samples(ask.prompt, replace(ask.params, num_steps=None))
        for request in samples:
            request.parent = None
            self._engine.run([request], on_finish=lambda request: None)
            _by_definition(request, self._suppressed)
        return [request.output() for request in samples]


def _by_definition(request: Request, suppressed: tuple[int, ...]) -> None:
    """Tokens and log-probabilities are what the tables and the rule of architecture 4.3 give, in Python numbers."""
    if POISON in request.prompt_ids:
        return
    rule, output = _rule(request, suppressed), request.output()
    tokens = (*request.prompt_ids, *request.output_ids)
    for place in range(request.prompt_len, len(tokens)):
        assert next_token(tokens[:place], rule) == tokens[place], (request.request_id, place)
    told = [*(output.prompt_logprobs or [None] * request.prompt_len), *(output.outputs[0].logprobs or ())]
    for place, entry in enumerate(told):
        if entry is not None:
            top = request.params.logprobs if place >= request.prompt_len else request.params.prompt_logprobs
            wanted = logprobs(tokens[:place], tokens[place], top or 0)
            assert [(token, at.rank) for token, at in entry.items()] == [(token, rank) for token, rank, _ in wanted]
            assert all(abs(entry[token].logprob - value) < 1e-9 for token, _, value in wanted)


def _rule(request: Request, suppressed: tuple[int, ...]) -> Rule:
    return Rule(params=request.params, seed=request.seed, prompt_len=request.prompt_len, suppressed=suppressed)


@cache
def plain(suppressed: tuple[int, ...]) -> Plain:
    return Plain(suppressed)


# --------------------------------------------------------------------------------------------- all three


WRAPS: tuple[Callable[[Any], Any], ...] = (Lagging, WorkerExecutor, lambda device: device)


def expected(mix: Mix) -> list[RequestOutput]:
    """What every request must give."""
    return [output for ask in mix.asks for output in plain(mix.machine.suppressed)(ask)]


def check(mix: Mix, wanted: Sequence[RequestOutput] | None = None) -> tuple[Played, Played]:
    """Everything that must hold for one mix; (sync, overlapped). wanted: `expected(mix)`, if it is known already."""
    wanted = expected(mix) if wanted is None else wanted
    sync = play(mix, "sync", lambda device: device)
    overlap = play(mix, "overlap", WRAPS[mix.seed % len(WRAPS)])
    for played in (sync, overlap):
        asks = [ask for ask in mix.asks for _ in range(ask.params.n)]
        for ask, found, one in zip(asks, played.outputs, wanted, strict=True):
            same(ask, found, one)
    assert sync.stats.late_runs == 0
    return sync, overlap


def same(ask: Ask, found: RequestOutput, wanted: RequestOutput) -> None:
    """Ids, text, reasons, usage and log-probabilities; what was aborted has a first part of them."""
    ours, theirs, name = found.outputs[0], wanted.outputs[0], found.request_id
    assert (found.prompt_token_ids, found.seed) == (ask.prompt, wanted.seed), name
    count = len(ours.token_ids)
    if ask.abort is not None and ours.finish_reason == "abort":
        assert ours.token_ids == theirs.token_ids[:count], name
    else:
        assert _told(ours) == _told(theirs), (name, _told(ours), _told(theirs))
        assert ours.finish_reason == "error" or _near(found.prompt_logprobs, wanted.prompt_logprobs), name
    assert (ours.logprobs is None) == (ask.params.logprobs is None), name
    if ours.logprobs is not None and theirs.logprobs is not None:
        assert len(ours.logprobs) == count and _near(ours.logprobs, theirs.logprobs[:count]), name


def _told(one: CompletionOutput) -> tuple[Any, ...]:
    return one.token_ids, one.finish_reason, one.stop_reason, one.text


def _near(ours: Sequence[Logprobs | None] | None, theirs: Sequence[Logprobs | None] | None) -> bool:
    """Whether log-probabilities are equal to 1e-9, with the same tokens in the same order at the same ranks."""
    if ours is None or theirs is None:
        return ours is theirs
    ours, theirs = list(ours), list(theirs)
    if [None if at is None else list(at) for at in ours] != [None if at is None else list(at) for at in theirs]:
        return False
    pairs = [(mine[t], other[t]) for mine, other in zip(ours, theirs, strict=True) if mine and other for t in mine]
    return all(a.rank == b.rank and abs(a.logprob - b.logprob) < 1e-9 for a, b in pairs)
