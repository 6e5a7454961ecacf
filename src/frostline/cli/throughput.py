"""`frostline bench throughput`: many requests at once: tokens per second, latencies and acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.text import Text

from frostline.cli import loading, output
from frostline.cli.cases import open_baseline
from frostline.cli.comparison import ComparisonOptions, ratio, same
from frostline.cli.loads import as_row, baseline_loads, engine_loads, measure_loads, record_timeline
from frostline.cli.measure import read_numbers, widest
from frostline.cli.options import EngineOptions, ModelOptions, SamplingOptions, SpeculationOptions, grouped
from frostline.cli.plot import check_plot, draw
from frostline.cli.workload import Encode, Lengths, Work, arrivals, make_prompts, make_work
from frostline.config import Schedule
from frostline.errors import ConfigError
from frostline.types import SamplingParams

EPILOG = """Examples

frostline bench throughput --input-len 32:512 --output-len 128 --concurrency 1,8,32 --plot throughput.png

frostline bench throughput --modes chain --schedule overlap --against transformers --json > throughput.json

frostline bench throughput --request-rate 4 --concurrency 64 --prompt-file prompts.txt

frostline bench throughput --modes chain --concurrency 8 --num-prompts 16 --timeline ticks.json
"""

SEED = 1
_LOAD, _RESULT = "Load", "Result"


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Which requests come, how long they are and how many at once."""

    num_prompts: Annotated[
        int,
        typer.Option("--num-prompts", help="Requests; prompts are repeated to fill them.", rich_help_panel=_LOAD),
    ] = 64
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", help="One prompt per line, instead of the held-out ones.", rich_help_panel=_LOAD),
    ] = None
    input_len: Annotated[
        str | None,
        typer.Option(
            "--input-len",
            help="Prompt tokens, all the same (128) or drawn from a range (32:512): held-out text cut to length; with "
            "--dummy-weights, random tokens.",
            metavar="N|LOW:HIGH",
            rich_help_panel=_LOAD,
        ),
    ] = None
    output_len: Annotated[
        str,
        typer.Option(
            "--output-len",
            help="New tokens, likewise; nothing ends earlier.",
            metavar="N|LOW:HIGH",
            rich_help_panel=_LOAD,
        ),
    ] = "128"
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency",
            help="Clients, each sending its next request when the last one is answered.",
            metavar="C,C,...",
            rich_help_panel=_LOAD,
        ),
    ] = "1,8,32"
    request_rate: Annotated[
        float | None,
        typer.Option(
            "--request-rate",
            help="Requests per second instead, arriving at random (Poisson); --concurrency then bounds the open ones.",
            metavar="R",
            rich_help_panel=_LOAD,
        ),
    ] = None

    def check(self, sampling: SamplingOptions, *, against: str | None) -> None:
        """Raises ConfigError for what would make the cases do different work, or none."""
        if against is not None and self.request_rate is not None:
            raise ConfigError("transformers has no queue to send requests to; leave --request-rate or --against out")
        if sampling.stop or sampling.max_tokens != SamplingOptions.max_tokens:
            raise ConfigError("every request of this bench runs to its --output-len; leave --stop and --max-tokens out")
        if self.request_rate is not None and not 0 < self.request_rate < float("inf"):
            raise ConfigError(f"--request-rate must be requests per second above 0, got {self.request_rate}")
        for text, option in ((self.input_len, "--input-len"), (self.output_len, "--output-len")):
            if text is not None:
                Lengths.parse(text, option)

    def work(self, encode: Encode | None, params: SamplingParams) -> list[Work]:
        """The requests. encode: as make_prompts takes it."""
        inputs = None if self.input_len is None else Lengths.parse(self.input_len, "--input-len")
        prompts = make_prompts(self.prompt_file, inputs, self.num_prompts, encode=encode, seed=SEED)
        return make_work(prompts, params, Lengths.parse(self.output_len, "--output-len"), seed=SEED)

    def arrivals(self) -> list[float] | None:
        return None if self.request_rate is None else arrivals(self.num_prompts, self.request_rate, seed=SEED)


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Files to write beside the figures."""

    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw tokens/s and latencies over concurrency, and acceptance per depth; needs the extra bench.",
            metavar="FILE.png",
            rich_help_panel=_RESULT,
        ),
    ] = None
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            help="Record one more pass of the last case: what host and device do when, as a Chrome trace for "
            "ui.perfetto.dev.",
            metavar="FILE.json",
            rich_help_panel=_RESULT,
        ),
    ] = None


@grouped
def throughput(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    load: LoadOptions,
    comparison: ComparisonOptions,
    result: ResultOptions,
    schedule: Annotated[
        str, typer.Option("--schedule", help="Some of sync,overlap: the engine's two loops.", metavar="S,S")
    ] = "sync,overlap",
) -> None:
    """Many requests at once: tokens per second, latencies and acceptance by concurrency, mode and schedule.

    Every case serves the same requests, in turns, the median round counting. Requests run to their full length, so all
    cases do the same work. Seconds include prefill; the prefix cache is off, since every round sends the same prompts.
    """
    meaning, schedules = speculation.resolve(), read_schedules(schedule)
    clients = read_numbers(load.concurrency, "--concurrency")
    comparison.check(sampling)
    load.check(sampling, against=comparison.against)
    if result.plot is not None:
        check_plot(result.plot)
    for notice in meaning.notices:
        output.remark(notice)
    configs = comparison.configs(meaning.config)
    model = replace(model, max_num_seqs=max(model.max_num_seqs, *clients))
    llm = loading.open_llm(
        model,
        replace(meaning, config=widest(configs.values())),
        EngineOptions(schedule=schedules[0]),
        must_draft=any(name != "plain" for name in configs),
        prefix_cache=False,
    )
    codec = None if model.dummy_weights else llm.tokenizer
    work = load.work(None if codec is None else codec.encode, sampling.seeded(SEED).params(ignore_eos=True))
    cases = engine_loads(llm, configs, schedules, clients, work, load.arrivals())
    last = cases[-1]
    if comparison.against is not None:
        cases += baseline_loads(llm, open_baseline(model), work)
    measure_loads(cases, comparison.rounds, progress=output.remark)
    rows = [as_row(case, cases) for case in cases]
    if result.timeline is not None:
        record_timeline(llm, last, work).write(result.timeline)
    if result.plot is not None:
        lengths = f"{load.input_len or 'own'} to {load.output_len} tokens"
        draw(rows, result.plot, title=f"{model.model}: {load.num_prompts} requests, {lengths}")
    if not comparison.as_json:
        show(rows)
        return
    told = ("num_prompts", "input_len", "output_len", "request_rate")
    comparison.write("bench throughput", model, sampling, rows, **{name: getattr(load, name) for name in told})


def read_schedules(text: str) -> list[Schedule]:
    """ "sync,overlap" to its parts; raises ConfigError for others, or none."""
    known: dict[str, Schedule] = {name: name for name in get_args(Schedule)}
    parts = [part.strip() for part in text.split(",")]
    if any(part not in known for part in parts):
        raise ConfigError(f"--schedule must be sync, overlap or both with a comma between, got {text!r}")
    return [known[part] for part in parts]


def show(rows: Sequence[dict[str, Any]]) -> None:
    def latency(row: dict[str, Any], name: str) -> str:
        found = row.get(name)
        return f"{found['p50']:.0f} / {found['p99']:.0f}" if found else "-"

    cells = [
        [
            row["mode"],
            row["schedule"] or "-",
            str(row["concurrency"]),
            f"{row['tokens_per_s']:.0f}",
            ratio(row["to_plain"]),
            ratio(row["to_sync"]),
            ratio(row["to_one_by_one"]),
            ratio(row["to_padded"]),
            latency(row, "ttft_ms"),
            latency(row, "inter_token_ms"),
            latency(row, "end_to_end_ms"),
            ratio(row.get("accept_length")),
            same(row),
        ]
        for row in rows
    ]
    columns = (
        *("mode", "schedule", "at once", "tok/s", "x plain", "x sync", "x hf one", "x hf 8"),
        *("first ms", "between ms", "whole ms", "accept", "same"),
    )
    console = output.stdout()
    console.print(output.figure_table(columns, cells))
    console.print(
        Text(
            "first, between, whole: milliseconds to the first token, between tokens and to the last, p50 / p99. "
            "x plain, x sync: to those with all else equal; x hf: to transformers one by one and in padded batches of "
            "8. same: requests with plain's tokens"
        )
    )
