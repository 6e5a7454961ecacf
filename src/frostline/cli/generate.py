"""`frostline generate`: text for prompts or for a conversation, on stdout; figures on stderr."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from frostline.cli import loading, output
from frostline.cli.loading import Generator
from frostline.cli.measure import Totals
from frostline.cli.options import EngineOptions, ModelOptions, SamplingOptions, SpeculationOptions, grouped
from frostline.errors import ConfigError
from frostline.types import RequestOutput, SamplingParams

EPILOG = """Examples

frostline generate --prompt "Once upon a time"

frostline generate --chat "Why is the sky blue?" --chat "Say it shorter."

frostline generate --prompt-file prompts.txt --temperature 1 --top-k 64 --top-p 0.95 --seed 7 --json

frostline generate --model ./gemma-4-E2B-it --draft ./gemma-4-E2B-it-assistant --num-steps 3 --prompt "Hello"

git diff | frostline generate --prompt - --num-steps 5 --topk 2 --num-draft-tokens 12
"""

_INPUT = "Input"


@grouped
def generate(
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    engine: EngineOptions,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="Text to continue; may be repeated; - reads stdin.", rich_help_panel=_INPUT),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", help="UTF-8, one prompt per line, blank lines skipped.", rich_help_panel=_INPUT),
    ] = None,
    chat: Annotated[
        list[str] | None,
        typer.Option(
            "--chat", help="A user's turn, answered; repeated, the turns of one conversation.", rich_help_panel=_INPUT
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--n", help="Samples of each prompt, which is prefilled once; a chat goes on from the first.")
    ] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option("--logprobs", help="With --json: log-probabilities, also of this many likely tokens, 0 to 20."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option("--prompt-logprobs", help="The same for the tokens of the prompts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Generate text with Frozen-KV multi-token prediction; the same tokens as without it."""
    meaning = speculation.resolve()
    params = replace(sampling.params(), n=samples, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    if not as_json and not (logprobs is None and prompt_logprobs is None):
        raise ConfigError("log-probabilities are part of the JSON; add --json")
    prompts = loading.gather_prompts(prompt, prompt_file)
    turns = loading.gather_prompts(chat, None)
    if not prompts and not turns:
        raise ConfigError("nothing to generate from; give --prompt, --prompt-file or --chat (--prompt - reads stdin)")
    if prompts and turns:
        raise ConfigError("--chat is a conversation and --prompt is plain text to continue; give one of them")
    for notice in meaning.notices:
        output.remark(notice)
    llm = loading.open_llm(model, meaning, engine)
    start = time.perf_counter()
    outputs = _converse(llm, turns, params) if turns else llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    if as_json:
        output.write_json(
            {
                "model": model.model,
                "speculative": {**asdict(llm.speculative), "verify_width": llm.speculative.verify_width},
                "seconds": round(seconds, 4),
                "environment": output.environment(model.device),
                "requests": [output.output_json(item) for item in outputs],
            }
        )
        return
    _show(outputs, seconds)


def _converse(llm: Generator, turns: list[str], params: SamplingParams) -> list[RequestOutput]:
    """Each turn sees the answers to those before it."""
    messages: list[dict[str, str]] = []
    outputs: list[RequestOutput] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        outputs += llm.chat(messages, params)
        messages.append({"role": "assistant", "content": outputs[-1].outputs[0].text})
    return outputs


def _show(outputs: list[RequestOutput], seconds: float) -> None:
    several = len(outputs) > 1 or len(outputs[0].outputs) > 1
    for number, item in enumerate(outputs, start=1):
        for completion in item.outputs:
            if several:
                sample = f", sample {completion.index + 1}/{len(item.outputs)}" if len(item.outputs) > 1 else ""
                output.remark(f"[{number}/{len(outputs)}{sample}] {completion.finish_reason}, seed {item.seed}")
            typer.echo(completion.text)
    totals = Totals.of(outputs)
    line = f"{totals.tokens} tokens in {seconds:.2f} s, {totals.tokens / seconds:.0f} tokens/s"
    if totals.stats.drafted:
        line += (
            f"; accept length {totals.stats.accept_length:.2f}, per depth {output.rates(totals.acceptance_per_depth)}"
        )
    if not several:
        line += f"; finish: {outputs[0].outputs[0].finish_reason}"
    output.remark(line)
