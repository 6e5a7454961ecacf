"""`frostline bench latency`: tokens per second and acceptance by mode and batch, in one interleaved run.

Every case is warmed up, then all cases take turns for several rounds, and the median round counts: what else the
machine does meets all of them alike. Knows the engine as something that generates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from frostline.cli import loading, output
from frostline.cli.heldout import held_out
from frostline.cli.loading import Generator, Prompt
from frostline.cli.measure import MODES, Totals, modes_of, timed, widest
from frostline.cli.options import ModelOptions, SamplingOptions, SpeculationOptions, grouped
from frostline.config import DraftSampling, SpeculativeConfig
from frostline.errors import ConfigError
from frostline.types import RequestOutput, SamplingParams

EPILOG = """Examples

frostline bench latency --batch 1,8 --against transformers

frostline bench latency --temperature 1 --top-k 64 --top-p 0.95 --modes plain,chain --json > sampled.json

frostline bench latency --model ./gemma-4-E2B-it --draft ./gemma-4-E2B-it-assistant --num-steps 3 --batch 1,4,16
"""

SEED = 1
BASELINE = "transformers"
RANDOM_IDS = (5, 500)  # ordinary tokens in every vocabulary
RANDOM_PROMPTS = 8
Against = Literal["transformers"]
Tokens = list[tuple[int, ...]]

app = typer.Typer(no_args_is_help=True, help="Measure: every figure as JSON, with commit, device and versions.")


@dataclass(kw_only=True)
class Case:
    """One thing to measure: `run` gives tokens, seconds and the engine's outputs (none for the baseline)."""

    mode: str
    batch: int
    draft_sampling: DraftSampling | None
    config: SpeculativeConfig | None
    run: Callable[[], tuple[Tokens, float, list[RequestOutput]]]
    seconds: list[float] = field(default_factory=list)
    tokens: Tokens = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)

    def measure(self) -> None:
        self.tokens, seconds, self.outputs = self.run()
        self.seconds.append(seconds)

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.tokens)) / median(self.seconds)


@app.command(epilog=EPILOG)
@grouped
def latency(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, comma between.", metavar="B,B,...")] = "1,8",
    modes: Annotated[
        str | None, typer.Option("--modes", help="Some of plain,chain,tree.  [default: all that the pair allows]")
    ] = None,
    against: Annotated[
        Against | None, typer.Option("--against", help="Also run transformers' generate: greedy, one padded batch.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Measured rounds; the median counts.")] = 5,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", help="One prompt per line.  [default: the bundled held-out ones]")
    ] = None,
    input_len: Annotated[
        int | None, typer.Option("--input-len", help="Prompts of this many random tokens instead, for dummy weights.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Tokens per second and accept length by mode and batch size, cases interleaved in one run.

    Every request runs to --max-tokens; an end-of-text token does not stop it, so that all cases do the same work.
    Seconds are those of a whole call, prefill included. At a temperature above 0, drafts are measured both coupled and
    argmax.
    """
    meaning, params = speculation.resolve(), sampling.seeded(SEED).params(ignore_eos=True)
    batches = read_batches(batch)
    names = read_modes(modes, drafting=meaning.config.num_steps > 0)
    if against is not None and params.temperature > 0:
        raise ConfigError("--against transformers compares greedy decoding; leave --temperature at 0")
    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, got {rounds}")
    for notice in meaning.notices:
        output.remark(notice)
    prompts = read_prompts(prompt_file, input_len)
    configs = modes_of(names, meaning.config)
    model = replace(model, max_num_seqs=max(model.max_num_seqs, *batches))
    llm = loading.open_llm(
        model, replace(meaning, config=widest(configs.values())), must_draft=any(name != "plain" for name in names)
    )
    cases = [
        case for size in batches for case in engine_cases(llm, configs, list(islice(cycle(prompts), size)), params)
    ]
    if against is not None:
        cases += baseline_cases(llm, model, prompts, batches, sampling.max_tokens)
    measure_interleaved(cases, rounds)
    rows = [as_row(case, cases) for case in cases]
    if as_json:
        output.write_json(
            {
                "command": "bench latency",
                "model": model.model,
                "environment": output.environment(model.device),
                "dtype": model.dtype,
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "rounds": rounds,
                "cases": rows,
            }
        )
    else:
        show(rows)


def read_batches(text: str) -> list[int]:
    """ "1,8" to [1, 8]; raises ConfigError for anything that is not a list of positive numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--batch must be positive numbers with commas between, such as 1,8; got {text!r}")
    return [int(part) for part in parts]


def read_prompts(prompt_file: Path | None, input_len: int | None) -> list[Prompt]:
    """The file's, random token ids, or the bundled held-out prompts; raises ConfigError for two of them at once."""
    if input_len is None:
        texts = loading.gather_prompts(None, prompt_file) if prompt_file else [item.prompt for item in held_out(4)]
        return list(texts)
    if prompt_file is not None:
        raise ConfigError("--prompt-file and --input-len both say what the prompts are; give one of them")
    if input_len < 1:
        raise ConfigError(f"--input-len must be at least 1, got {input_len}")
    draw = Random(SEED)
    return [[draw.randrange(*RANDOM_IDS) for _ in range(input_len)] for _ in range(RANDOM_PROMPTS)]


def read_modes(text: str | None, *, drafting: bool) -> list[str]:
    """The modes to run; plain alone when nothing drafts and none were named."""
    if text is None:
        return list(MODES) if drafting else ["plain"]
    return [part.strip() for part in text.split(",") if part.strip()]


def engine_cases(
    llm: Generator, configs: dict[str, SpeculativeConfig], prompts: list[Prompt], params: SamplingParams
) -> list[Case]:
    """One case per mode; drafting modes twice when sampling, once for each way to draw drafts."""
    both: tuple[DraftSampling, ...] = ("coupled", "argmax")
    cases: list[Case] = []
    for mode, config in configs.items():
        kinds = both if params.temperature > 0 and config.num_steps > 0 else (config.draft_sampling,)
        for kind in kinds:
            own = replace(config, draft_sampling=kind)
            cases.append(
                Case(
                    mode=mode,
                    batch=len(prompts),
                    draft_sampling=kind if params.temperature > 0 and config.num_steps > 0 else None,
                    config=own,
                    run=_engine_run(llm.with_speculative(own), prompts, params),
                )
            )
    return cases


def baseline_cases(
    llm: Generator, model: ModelOptions, prompts: list[Prompt], batches: Sequence[int], max_tokens: int
) -> list[Case]:
    """transformers on the same token ids, device and dtype."""
    import torch

    from frostline.cli.baseline import TransformersBaseline
    from frostline.model.dtypes import resolve_dtype
    from frostline.model.resolve import resolve_model
    from frostline.model.spec import read_config, target_spec

    folder = resolve_model(model.model)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if model.device == "auto" else model.device)
    dtype = resolve_dtype(model.dtype, config_dtype=target_spec(read_config(folder)).dtype, device=device)
    baseline = TransformersBaseline(folder, device=device, dtype=dtype)
    probe = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    ids = [item.prompt_token_ids for item in llm.generate(prompts, probe, use_tqdm=False)]

    def run(size: int) -> Callable[[], tuple[Tokens, float, list[RequestOutput]]]:
        own = list(islice(cycle(ids), size))
        return lambda: (*baseline.generate(own, max_tokens), [])

    return [Case(mode=BASELINE, batch=size, draft_sampling=None, config=None, run=run(size)) for size in batches]


def measure_interleaved(cases: Sequence[Case], rounds: int) -> None:
    """One unmeasured turn each, then `rounds` turns in which every case runs once."""
    for case in cases:
        case.run()
    for _ in range(rounds):
        for case in cases:
            case.measure()


def as_row(case: Case, cases: Sequence[Case]) -> dict[str, Any]:
    """One case for JSON; ratios are to the case of the same batch, None where it was not measured."""
    plain = _same_batch(case, cases, "plain")
    row: dict[str, Any] = {
        "mode": case.mode,
        "batch": case.batch,
        "draft_sampling": case.draft_sampling,
        "tokens_per_s": round(case.tokens_per_s, 2),
        "seconds": [round(value, 4) for value in case.seconds],
        "to_plain": _ratio(case, plain),
        "to_transformers": _ratio(case, _same_batch(case, cases, BASELINE)),
        "same_tokens_as_plain": None if plain is None else sum(map(_equal, case.tokens, plain.tokens)),
    }
    if case.config is not None and case.config.num_steps > 0:
        row |= {
            "num_steps": case.config.num_steps,
            "topk": case.config.topk,
            "num_draft_tokens": case.config.verify_width,
            **{key: value for key, value in Totals.of(case.outputs).as_json().items() if key != "requests"},
        }
    return row


def show(rows: Sequence[dict[str, Any]]) -> None:
    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    cells = [
        [
            row["mode"] if row["draft_sampling"] is None else f"{row['mode']} ({row['draft_sampling']})",
            str(row["batch"]),
            f"{row['tokens_per_s']:.0f}",
            ratio(row["to_plain"]),
            ratio(row["to_transformers"]),
            f"{row['accept_length']:.2f}" if "accept_length" in row else "-",
            output.rates(row.get("acceptance_per_depth", ())),
            "-" if row["same_tokens_as_plain"] is None else f"{row['same_tokens_as_plain']}/{row['batch']}",
        ]
        for row in rows
    ]
    columns = ("mode", "batch", "tok/s", "x plain", "x hf", "accept", "per depth", "same")
    console = output.stdout()
    console.print(output.figure_table(columns, cells))
    console.print(
        Text("x plain, x hf: to plain and to transformers at the same batch; same: requests with plain's tokens")
    )


def _engine_run(
    llm: Generator, prompts: list[Prompt], params: SamplingParams
) -> Callable[[], tuple[Tokens, float, list[RequestOutput]]]:
    def run() -> tuple[Tokens, float, list[RequestOutput]]:
        outputs, seconds = timed(llm, prompts, params)
        return [item.outputs[0].token_ids for item in outputs], seconds, outputs

    return run


def _same_batch(case: Case, cases: Sequence[Case], mode: str) -> Case | None:
    return next((other for other in cases if other.mode == mode and other.batch == case.batch), None)


def _ratio(case: Case, other: Case | None) -> float | None:
    return None if other is None else round(case.tokens_per_s / other.tokens_per_s, 3)


def _equal(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return left == right
