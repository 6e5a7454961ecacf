"""`frostline train`: the corpus and the bundled pair, made by the project's own trainer; options in, folders out."""

from __future__ import annotations

import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from frostline.bundled import bundled_path
from frostline.cli import heldout, output
from frostline.requirements import check_requirements

CORPUS_EPILOG = """Examples

frostline train corpus --gsm8k gsm8k_train.jsonl --out corpus

frostline train corpus --gsm8k gsm8k_train.jsonl --sampled sampled --out corpus --prompts held_out.jsonl
"""
TINY_EPILOG = """Examples

frostline train tiny --corpus corpus --out models

frostline train tiny --corpus corpus --out trial --device cpu --steps 20 --batch-tokens 2048

frostline train tiny --corpus corpus --out models --stages drafter,evaluate --minutes-drafter 6
"""

app = typer.Typer(no_args_is_help=True, help="Train the bundled pair from texts whose licences allow it.")


@app.command(epilog=CORPUS_EPILOG)
def corpus(
    gsm8k: Annotated[Path, typer.Option("--gsm8k", help="The training file of GSM8K, never the test file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the tokens.")],
    sampled: Annotated[
        Path | None, typer.Option("--sampled", help="Folder of tools/sample_smollm2.py; no chats without it.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Folder of a tokenizer, trained there if it has none.")
    ] = None,
    cache: Annotated[Path, typer.Option("--cache", help="Where source packages are kept unpacked.")] = Path(".corpus"),
    prompts: Annotated[Path | None, typer.Option("--prompts", help="Write the held-out prompts here.")] = None,
) -> None:
    """Collect, split and tokenise the training text; sources and licences are listed in OUT/index.json."""
    from frostline.train.corpus import build_corpus

    build_corpus(
        out,
        gsm8k,
        sampled,
        tokenizer_folder=tokenizer or bundled_path("tiny"),
        cache=cache,
        prompts=prompts,
        report=typer.echo,
    )


@app.command(epilog=TINY_EPILOG)
def tiny(
    corpus: Annotated[Path, typer.Option("--corpus", help="Folder of `frostline train corpus`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for tiny/, tiny-assistant/ and metrics.json.")],
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Folder; the bundled one if left out.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Held-out prompts, JSON lines; the bundled ones if left out.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto (cuda where there is one), cpu, cuda.")] = "auto",
    minutes_target: Annotated[float, typer.Option("--minutes-target", help="Training time of the target.")] = 5.0,
    minutes_drafter: Annotated[float, typer.Option("--minutes-drafter", help="Training time of the assistant.")] = 4.0,
    stages: Annotated[
        str, typer.Option("--stages", help="Some of target,sample,drafter,evaluate; earlier ones are read from OUT.")
    ] = "target,sample,drafter,evaluate",
    seed: Annotated[int, typer.Option("--seed", help="Same seed and steps, same weights on one machine.")] = 0,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps instead of minutes, for trials.")] = None,
    batch_tokens: Annotated[int | None, typer.Option("--batch-tokens", help="Tokens per step of the target.")] = None,
    compile_model: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
) -> None:
    """Train a small Gemma 4 target and its Frozen-KV assistant, measure them, and write their model cards."""
    check_requirements()
    from frostline.speculative.pair import resolve_device
    from frostline.train.card import Facts
    from frostline.train.tiny import train_tiny

    place = resolve_device(device)
    where = output.environment(place)
    train_tiny(
        corpus,
        out,
        tokenizer=tokenizer or bundled_path("tiny"),
        prompts=prompts or bundled_path("tiny") / heldout.FILE,
        device=place,
        minutes_target=minutes_target,
        minutes_drafter=minutes_drafter,
        stages=[stage.strip() for stage in stages.split(",") if stage.strip()],
        seed=seed,
        steps=steps,
        batch_tokens=batch_tokens,
        compile_model=compile_model,
        facts=Facts(
            date=date.today().isoformat(),
            hardware=str(where["device"]),
            commit=str(where["commit"] or where["frostline"]),
            command=shlex.join(["frostline", *sys.argv[1:]]),
        ),
        console=output.stdout(),
    )
