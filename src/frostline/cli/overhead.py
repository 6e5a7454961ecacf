"""`frostline bench overhead`: what a tick costs without the model, and how far host and device work overlap."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from frostline.cli import output
from frostline.cli.instant import InstantExecutor
from frostline.config import EngineConfig, Schedule, SpeculativeConfig
from frostline.engine.timeline import Timeline
from frostline.errors import ConfigError
from frostline.types import SamplingParams

if TYPE_CHECKING:
    from frostline.engine.live import Live
    from frostline.llm import LLM

EPILOG = """Examples

frostline bench overhead

frostline bench overhead --requests 128 --num-steps 8 --rounds 9 --json
"""

# Long enough for every tick of a round, so that a round holds iterations and nothing else.
CONTEXT = 16384
PROMPT = 32
INJECTED = 0.010
INJECTED_TICKS = 50
TOKEN_ID = 9
WARM_UP = 5
PARTS = ("schedule", "launch", "collect", "update")


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """Seconds per tick. wall: of the median tick, since other work on the machine takes whole ticks away and none of
    the others. cpu: processor time of the loop's thread, the mean.
    """

    wall: float
    cpu: float


def overhead(
    requests: Annotated[int, typer.Option("--requests", help="Requests that run at once.", metavar="B")] = 32,
    num_steps: Annotated[int, typer.Option("--num-steps", help="Draft depth; half is accepted.", metavar="K")] = 4,
    ticks: Annotated[int, typer.Option("--ticks", help="Ticks in a round.")] = 500,
    rounds: Annotated[int, typer.Option("--rounds", help="Measured rounds; the median counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What the engine's loop costs without the model, and what overlap saves.

    Three measurements of each schedule, all without a model. Loop: milliseconds per tick when the device answers at
    once: scheduling, pages, finish rules, counters. Stream: the same with every tick's tokens given out piece by piece.
    Overlap: 10 ms of work on the device (slept on its own thread) and 10 ms on the host (slept between two ticks): sync
    takes their sum, overlap little more than one of them.
    """
    for name, value in (("--requests", requests), ("--ticks", ticks), ("--rounds", rounds)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    config = SpeculativeConfig(num_steps=num_steps)
    if ticks * (num_steps // 2 + 1) + PROMPT + 64 > CONTEXT:
        raise ConfigError(f"--ticks {ticks} at this depth passes the {CONTEXT} tokens of a request; take fewer ticks")
    rows = [_measure(schedule, config, requests, ticks, rounds) for schedule in get_args(Schedule)]
    if as_json:
        figures = {"requests": requests, "num_steps": num_steps, "ticks": ticks, "rounds": rounds}
        environment = output.environment("cpu")
        output.write_json({"command": "bench overhead", "environment": environment, **figures, "schedules": rows})
        return
    cells = [
        [
            row["schedule"],
            f"{row['loop_ms']:.3f}",
            f"{row['loop_cpu_ms']:.3f}",
            f"{row['stream_ms']:.3f}",
            *(f"{row['parts_ms'][part]:.3f}" for part in PARTS),
            f"{row['injected_ms']:.2f}",
        ]
        for row in rows
    ]
    columns = ("milliseconds per tick", "loop", "loop, cpu", "stream", *PARTS, "10 host + 10 device")
    output.stdout().print(output.figure_table(columns, cells))


def _measure(schedule: Schedule, config: SpeculativeConfig, requests: int, ticks: int, rounds: int) -> dict[str, Any]:
    loop = [_loop_cost(schedule, config, requests, ticks, None) for _ in range(rounds)]
    stream = [_stream_cost(schedule, config, requests, ticks) for _ in range(rounds)]
    timeline = Timeline()
    _loop_cost(schedule, config, requests, ticks, timeline)
    parts: dict[str, list[float]] = defaultdict(list)
    for span in timeline.spans:
        parts[span.name].append(span.end - span.start)
    return {
        "schedule": schedule,
        "loop_ms": round(median(cost.wall for cost in loop) * 1000, 4),
        "loop_cpu_ms": round(median(cost.cpu for cost in loop) * 1000, 4),
        "stream_ms": round(median(cost.wall for cost in stream) * 1000, 4),
        "parts_ms": {part: round(median(parts[part]) * 1000, 4) for part in PARTS},
        "injected_ms": round(_injected_seconds(schedule, config) * 1000, 3),
    }


def _llm(
    schedule: Schedule, config: SpeculativeConfig, requests: int, timeline: Timeline | None, seconds: float = 0.0
) -> LLM:
    from frostline.llm import LLM
    from frostline.speculative.worker import WorkerExecutor

    device = InstantExecutor(
        max_num_seqs=requests, max_context=CONTEXT, verify_width=config.verify_width, seconds=seconds
    )
    return LLM.from_executor(
        WorkerExecutor(device) if seconds else device,
        speculative=config,
        engine=EngineConfig(max_num_seqs=requests, schedule=schedule),
        timeline=timeline,
    )


def _loop_cost(
    schedule: Schedule, config: SpeculativeConfig, requests: int, ticks: int, timeline: Timeline | None
) -> _Cost:
    """Of the loop alone."""
    llm = _llm(schedule, config, requests, timeline)
    with closing(_running(llm, requests)):
        return _cost(llm._engine.loop.tick, ticks)


def _stream_cost(schedule: Schedule, config: SpeculativeConfig, requests: int, ticks: int) -> _Cost:
    """With every request's tokens given out."""
    with closing(_running(_llm(schedule, config, requests, None), requests)) as live:
        return _cost(live.step, ticks)


def _running(llm: LLM, requests: int) -> Live:
    """Requests past their prefill."""
    live = llm.live(text=False)
    for number in range(requests):
        live.add([TOKEN_ID + number] * PROMPT, SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    for _ in range(WARM_UP):
        live.step()
    return live


def _cost(turn: Callable[[], object], ticks: int) -> _Cost:
    clock, cpu = [time.perf_counter()], time.thread_time()
    for _ in range(ticks):
        turn()
        clock.append(time.perf_counter())
    cpu = (time.thread_time() - cpu) / ticks
    return _Cost(wall=median(after - before for before, after in pairwise(clock)), cpu=cpu)


def _injected_seconds(schedule: Schedule, config: SpeculativeConfig) -> float:
    """Seconds per tick with one request, 10 ms of device work in every step and 10 ms of host work beside it."""
    with closing(_running(_llm(schedule, config, 1, None, seconds=INJECTED), 1)) as live:
        start = time.perf_counter()
        for _ in range(INJECTED_TICKS):
            live.step()
            time.sleep(INJECTED)
        return (time.perf_counter() - start) / INJECTED_TICKS
