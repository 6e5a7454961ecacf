"""`frostline demo`: the bundled pair on held-out prompts, plain, chain and tree: the text, the figures, and whether the
tokens are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from frostline.cli import loading, output
from frostline.cli.heldout import HeldOut, held_out
from frostline.cli.loading import Generator
from frostline.cli.marks import accepted_flags, marked, pieces
from frostline.cli.measure import MODES, Totals, modes_of, timed, widest
from frostline.cli.options import EngineOptions, ModelOptions, SamplingOptions, SpeculationOptions, grouped
from frostline.config import SpeculativeConfig
from frostline.types import RequestOutput, SamplingParams

EPILOG = """Examples

frostline demo

frostline demo --num-steps 5 --topk 3 --temperature 1 --top-k 64 --top-p 0.95

frostline demo --dtype float64 --json
"""

SEED = 1
WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class ModeResult:
    """One mode over all prompts, each prompt alone. seconds: summed, prefill included."""

    config: SpeculativeConfig
    outputs: tuple[RequestOutput, ...]
    seconds: float

    @property
    def totals(self) -> Totals:
        return Totals.of(self.outputs)

    @property
    def tokens_per_s(self) -> float:
        return self.totals.tokens / self.seconds

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        return tuple(item.outputs[0].token_ids for item in self.outputs)


@grouped
def demo(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    engine: EngineOptions,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Generate with the bundled pair: plain, chain and tree; accepted draft tokens are marked.

    Exits with 1 when the three do not give the same tokens.
    """
    meaning, params = speculation.resolve(), sampling.seeded(SEED).params()
    configs = modes_of(MODES, meaning.config)
    for notice in meaning.notices:
        output.remark(notice)
    prompts = held_out()
    widened = replace(meaning, config=widest(configs.values()))
    llm = loading.open_llm(model, widened, engine, must_draft=True, prefix_cache=False)
    results = {name: _run(llm.with_speculative(config), config, prompts, params) for name, config in configs.items()}
    identical = len({result.token_ids for result in results.values()}) == 1
    if as_json:
        output.write_json(_as_json(model, prompts, results, identical))
    else:
        _show(output.stdout(), llm, prompts, results, identical)
    if not identical:
        raise typer.Exit(1)


def _run(llm: Generator, config: SpeculativeConfig, prompts: Sequence[HeldOut], params: SamplingParams) -> ModeResult:
    """Every prompt alone, as one user would see it, after a short warm-up."""
    llm.generate([prompts[0].prompt], SamplingParams(temperature=params.temperature, max_tokens=WARM_UP_TOKENS, seed=0))
    outputs: list[RequestOutput] = []
    seconds = 0.0
    for item in prompts:
        done, took = timed(llm, [item.prompt], params)
        outputs += done
        seconds += took
    return ModeResult(config=config, outputs=tuple(outputs), seconds=seconds)


def _show(
    console: Console,
    llm: Generator,
    prompts: Sequence[HeldOut],
    results: Mapping[str, ModeResult],
    identical: bool,
) -> None:
    tokenizer = llm.tokenizer
    assert tokenizer is not None  # the prompts were text
    for number, item in enumerate(prompts):
        chain = results["chain"].outputs[number]
        console.print(Text(item.kind, style="bold"))
        console.print(Text(item.shown, style="dim"))
        parts = pieces(chain.outputs[0].token_ids, tokenizer)
        console.print(marked(zip(parts, accepted_flags(chain), strict=True), console))
        lengths = ", ".join(
            f"{name} {results[name].outputs[number].stats.accept_length:.2f}" for name in results if name != "plain"
        )
        console.print(Text(f"accept length {lengths}", style="dim"))
        console.print()
    console.print(Text("Marked: draft tokens that the target accepted (chain).", style="dim"))
    console.print()
    console.print(_figures(results))
    console.print()
    console.print(f"identical: {'yes' if identical else 'no'}")
    if not identical:
        for line in _differences(prompts, results):
            console.print(line)


def _figures(results: Mapping[str, ModeResult]) -> Any:
    plain = results["plain"].tokens_per_s
    rows = []
    for name, result in results.items():
        totals, config = result.totals, result.config
        sizes = "-" if name == "plain" else f"{config.num_steps}/{config.topk}/{config.verify_width}"
        rows.append(
            [
                name,
                sizes,
                f"{result.tokens_per_s:.0f}",
                f"{result.tokens_per_s / plain:.2f}x",
                f"{totals.stats.accept_length:.2f}",
                "-" if name == "plain" else output.rates(totals.acceptance_per_depth),
            ]
        )
    columns = ("mode", "K/k/N", "tokens/s", "to plain", "accept length", "per depth")
    return output.figure_table(columns, rows)


def _differences(prompts: Sequence[HeldOut], results: Mapping[str, ModeResult]) -> list[str]:
    """Where each drafting mode first leaves the plain tokens."""
    lines: list[str] = []
    for name, result in results.items():
        for item, plain, ids in zip(prompts, results["plain"].token_ids, result.token_ids, strict=True):
            if ids != plain:
                same = (position for position, (a, b) in enumerate(zip(plain, ids, strict=False)) if a != b)
                first = next(same, min(len(plain), len(ids)))
                lines.append(f"{name} differs from plain on {item.kind!r} at token {first + 1}")
    return lines


def _as_json(
    model: ModelOptions, prompts: Sequence[HeldOut], results: Mapping[str, ModeResult], identical: bool
) -> dict[str, Any]:
    plain = results["plain"].tokens_per_s
    return {
        "model": model.model,
        "environment": output.environment(model.device),
        "identical": identical,
        "differences": _differences(prompts, results),
        "modes": {
            name: {
                "num_steps": result.config.num_steps,
                "topk": result.config.topk,
                "num_draft_tokens": result.config.verify_width,
                "seconds": round(result.seconds, 4),
                "tokens_per_s": round(result.tokens_per_s, 2),
                "to_plain": round(result.tokens_per_s / plain, 3),
                **result.totals.as_json(),
                "requests": [
                    {"kind": item.kind, **output.output_json(out)}
                    for item, out in zip(prompts, result.outputs, strict=True)
                ],
            }
            for name, result in results.items()
        },
    }
