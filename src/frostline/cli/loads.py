"""What `bench throughput` measures: every mode, schedule and concurrency on the same requests, in turns.

Every case serves all requests once unmeasured, then once per round; the median round counts, its latencies included.
Knows the engine as something that streams; the baseline is imported only when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from frostline.cli.loading import Generator
from frostline.cli.measure import Totals
from frostline.cli.traffic import Served, serve
from frostline.cli.workload import Work
from frostline.config import Schedule, SpeculativeConfig
from frostline.engine.timeline import Timeline
from frostline.types import SamplingParams

if TYPE_CHECKING:
    from frostline.cli.baseline import TransformersBaseline

SEQUENTIAL, PADDED = "transformers one by one", "transformers padded"
PADDED_BATCH = 8
COUNTERS = ("steps", "late_runs", "preemptions", "prefill_tokens", "cached_prompt_tokens")


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over all requests. served: None for the baseline, which answers no request before its batch ends."""

    tokens: list[tuple[int, ...]]
    seconds: float
    served: Served | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class LoadCase:
    """One thing to measure. warm_up, run: one pass each, the first not measured."""

    mode: str
    schedule: Schedule | None
    concurrency: int
    config: SpeculativeConfig | None
    warm_up: Callable[[], object]
    run: Callable[[], Pass]
    passes: list[Pass] = field(default_factory=list)

    @property
    def median(self) -> Pass:
        return sorted(self.passes, key=lambda one: one.seconds)[len(self.passes) // 2]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.median.tokens)) / self.median.seconds


def engine_loads(
    llm: Generator,
    configs: dict[str, SpeculativeConfig],
    schedules: Sequence[Schedule],
    concurrency: Sequence[int],
    work: Sequence[Work],
    arrivals: Sequence[float] | None,
) -> list[LoadCase]:
    """One case for each concurrency, mode and schedule, those to be compared next to each other."""
    cases: list[LoadCase] = []
    for clients in concurrency:
        for mode, config in configs.items():
            for schedule in schedules:
                run = _engine_pass(llm.with_speculative(config).with_schedule(schedule), work, clients, arrivals)
                cases.append(
                    LoadCase(mode=mode, schedule=schedule, concurrency=clients, config=config, warm_up=run, run=run)
                )
    return cases


def baseline_loads(llm: Generator, baseline: TransformersBaseline, work: Sequence[Work]) -> list[LoadCase]:
    """transformers' generate on the same token ids: one request at a time, and padded batches in order of arrival."""
    probe = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    ids = [item.prompt_token_ids for item in llm.generate([one.prompt for one in work], probe, use_tqdm=False)]
    wanted = [one.params.max_tokens or 1 for one in work]

    def passes(size: int, limit: int | None) -> Pass:
        tokens: list[tuple[int, ...]] = []
        start = time.perf_counter()
        for at in range(0, len(ids) if limit is None else limit, size):
            longest = max(wanted[at : at + size])
            done, _ = baseline.generate(ids[at : at + size], longest)
            # A padded batch runs until its longest member is done; only what was asked for counts.
            tokens += [row[:length] for row, length in zip(done, wanted[at : at + size], strict=True)]
        return Pass(tokens=tokens, seconds=time.perf_counter() - start)

    return [
        LoadCase(
            mode=mode,
            schedule=None,
            concurrency=size,
            config=None,
            warm_up=lambda size=size: passes(size, size),  # type: ignore[misc]
            run=lambda size=size: passes(size, None),  # type: ignore[misc]
        )
        for mode, size in ((SEQUENTIAL, 1), (PADDED, PADDED_BATCH))
    ]


def measure_loads(cases: Sequence[LoadCase], rounds: int, *, progress: Callable[[str], None]) -> None:
    """A warm-up each, then `rounds` turns in which every case runs once. progress: told what begins."""
    for case in cases:
        progress(f"warm-up: {describe(case)}")
        case.warm_up()
    for number in range(1, rounds + 1):
        for case in cases:
            progress(f"round {number}/{rounds}: {describe(case)}")
            case.passes.append(case.run())


def record_timeline(llm: Generator, case: LoadCase, work: Sequence[Work]) -> Timeline:
    """One more, unmeasured pass of a case over two rounds of its clients' requests."""
    assert case.config is not None and case.schedule is not None
    timeline = Timeline()
    watched = llm.with_speculative(case.config).with_schedule(case.schedule, timeline=timeline)
    serve(watched, work[: 2 * case.concurrency], concurrency=case.concurrency)
    return timeline


def as_row(case: LoadCase, cases: Sequence[LoadCase]) -> dict[str, Any]:
    """One case for JSON. Ratios of tokens per second: to plain and to sync with all else equal, to the baselines."""
    chosen = case.median
    plain = _find(cases, mode="plain", schedule=case.schedule, concurrency=case.concurrency)
    row: dict[str, Any] = {
        "mode": case.mode,
        "schedule": case.schedule,
        "concurrency": case.concurrency,
        "requests": len(chosen.tokens),
        "tokens": sum(map(len, chosen.tokens)),
        "tokens_per_s": round(case.tokens_per_s, 2),
        "seconds": [round(one.seconds, 4) for one in case.passes],
        "to_plain": _ratio(case, plain),
        "to_sync": _ratio(case, _find(cases, mode=case.mode, schedule="sync", concurrency=case.concurrency)),
        "to_one_by_one": _ratio(case, _find(cases, mode=SEQUENTIAL)),
        "to_padded": _ratio(case, _find(cases, mode=PADDED)),
        "same_tokens_as_plain": None
        if plain is None
        else sum(mine == theirs for mine, theirs in zip(chosen.tokens, plain.median.tokens, strict=True)),
    }
    if chosen.served is not None:
        row |= {**chosen.served.latencies(), **chosen.counters}
    if chosen.served is not None and case.config is not None and case.config.num_steps > 0:
        totals = Totals.of(chosen.served.outputs)
        row |= {
            "num_steps": case.config.num_steps,
            "topk": case.config.topk,
            "num_draft_tokens": case.config.verify_width,
            "depth_table": None if case.config.depth_table is None else str(case.config.depth_table),
            "iterations": totals.stats.iterations,
            "accept_length": round(totals.stats.accept_length, 4),
            "acceptance_per_depth": [round(rate, 4) for rate in totals.acceptance_per_depth],
        }
    return row


def describe(case: LoadCase) -> str:
    schedule = "" if case.schedule is None else f" {case.schedule}"
    return f"{case.mode}{schedule}, {case.concurrency} at once"


def _engine_pass(
    llm: Generator, work: Sequence[Work], concurrency: int, arrivals: Sequence[float] | None
) -> Callable[[], Pass]:
    def run() -> Pass:
        before = llm.stats()
        served = serve(llm, work, concurrency=concurrency, arrivals=arrivals)
        after = llm.stats()
        counters = {name: getattr(after, name) - getattr(before, name) for name in COUNTERS}
        return Pass(tokens=served.tokens, seconds=served.seconds, served=served, counters=counters)

    return run


def _find(cases: Sequence[LoadCase], **wanted: object) -> LoadCase | None:
    return next((one for one in cases if all(getattr(one, name) == value for name, value in wanted.items())), None)


def _ratio(case: LoadCase, other: LoadCase | None) -> float | None:
    return None if other is None else round(case.tokens_per_s / other.tokens_per_s, 3)
