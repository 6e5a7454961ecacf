"""`frostline bench`, and its `latency`: tokens per second and acceptance by mode and batch, in one interleaved run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.text import Text

from frostline.cli import loading, output, overhead, throughput
from frostline.cli.cases import as_row, baseline_cases, engine_cases, in_batches, measure_interleaved
from frostline.cli.comparison import ComparisonOptions, ratio, same
from frostline.cli.heldout import held_out
from frostline.cli.loading import Prompt
from frostline.cli.measure import read_numbers, widest
from frostline.cli.options import EngineOptions, ModelOptions, SamplingOptions, SpeculationOptions, grouped
from frostline.cli.workload import RANDOM_IDS
from frostline.errors import ConfigError

EPILOG = """Examples

frostline bench latency --batch 1,8 --against transformers

frostline bench latency --temperature 1 --top-k 64 --top-p 0.95 --modes plain,chain --json > sampled.json

frostline bench latency --model ./gemma-4-E2B-it --draft ./gemma-4-E2B-it-assistant --num-steps 3 --batch 1,4,16
"""

SEED = 1

app = typer.Typer(no_args_is_help=True, help="Measure: every figure as JSON, with commit, device and versions.")
app.command(name="throughput", epilog=throughput.EPILOG)(throughput.throughput)
app.command(name="overhead", epilog=overhead.EPILOG)(overhead.overhead)


@app.command(epilog=EPILOG)
@grouped
def latency(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    engine: EngineOptions,
    comparison: ComparisonOptions,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, comma between.", metavar="B,B,...")] = "1,8",
    count: Annotated[int, typer.Option("--prompts", help="How many prompts, held-out or random.", metavar="COUNT")] = 8,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", help="One prompt per line, instead of the held-out ones.")
    ] = None,
    input_len: Annotated[
        int | None, typer.Option("--input-len", help="Prompts of this many random tokens instead, for dummy weights.")
    ] = None,
) -> None:
    """Tokens per second and accept length by mode and batch size, cases interleaved in one run.

    The prompts go through in batches of the size at hand, one batch after the other, repeated to fill the last one.
    Every request runs to --max-tokens: an end-of-text token does not stop it, so all cases do the same work. Seconds
    include prefill. At a temperature above 0, drafts are measured both coupled and argmax.
    """
    meaning, params = speculation.resolve(), sampling.seeded(SEED).params(ignore_eos=True)
    batches = read_numbers(batch, "--batch")
    comparison.check(sampling)
    if sampling.stop:
        raise ConfigError("every request of a bench runs to --max-tokens; leave --stop out")
    for notice in meaning.notices:
        output.remark(notice)
    prompts = read_prompts(prompt_file, input_len, count)
    configs = comparison.configs(meaning.config)
    model = replace(model, max_num_seqs=max(model.max_num_seqs, *batches))
    llm = loading.open_llm(
        model,
        replace(meaning, config=widest(configs.values())),
        engine,
        must_draft=any(name != "plain" for name in configs),
        prefix_cache=False,
    )
    cases = [case for size in batches for case in engine_cases(llm, configs, in_batches(prompts, size), params)]
    if comparison.against is not None:
        cases += baseline_cases(llm, model, prompts, batches, sampling.max_tokens)
    measure_interleaved(cases, comparison.rounds)
    rows = [as_row(case, cases) for case in cases]
    if comparison.as_json:
        comparison.write("bench latency", model, sampling, rows, max_tokens=params.max_tokens)
    else:
        show(rows)


def read_prompts(prompt_file: Path | None, input_len: int | None, count: int) -> list[Prompt]:
    """All of the file's, or `count` bundled held-out ones, or `count` of random token ids.

    Raises ConfigError where two of them are asked for.
    """
    if count < 1:
        raise ConfigError(f"--prompts must be at least 1, got {count}")
    if input_len is None:
        return [*(loading.gather_prompts(None, prompt_file) if prompt_file else (p.prompt for p in held_out(count)))]
    if prompt_file is not None:
        raise ConfigError("--prompt-file and --input-len both say what the prompts are; give one of them")
    if input_len < 1:
        raise ConfigError(f"--input-len must be at least 1, got {input_len}")
    draw = Random(SEED)
    return [[draw.randrange(*RANDOM_IDS) for _ in range(input_len)] for _ in range(count)]


def show(rows: Sequence[dict[str, Any]]) -> None:
    cells = [
        [
            row["mode"] if row["draft_sampling"] is None else f"{row['mode']} ({row['draft_sampling']})",
            str(row["batch"]),
            f"{row['tokens_per_s']:.0f}",
            ratio(row["to_plain"]),
            ratio(row["to_transformers"]),
            f"{row['accept_length']:.2f}" if "accept_length" in row else "-",
            output.rates(row.get("acceptance_per_depth", ())),
            same(row),
        ]
        for row in rows
    ]
    columns = ("mode", "batch", "tok/s", "x plain", "x hf", "accept", "per depth", "same")
    console = output.stdout()
    console.print(output.figure_table(columns, cells))
    console.print(
        Text("x plain, x hf: to plain and to transformers at the same batch; same: requests with plain's tokens")
    )
