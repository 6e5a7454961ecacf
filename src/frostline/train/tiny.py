"""Trains the bundled pair, stage by stage: target, its own text, drafter, measurements, cards.

Each stage reads what the one before wrote under `out`, so a run that is cut short goes on from there:
`tiny/` and `tiny-assistant/` (Hugging Face folders), `on_policy.npz`, `metrics.json`. Also a small command of its own
(`python -m frostline.train.tiny`) for machines that have torch and nothing else of the command line.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from frostline.errors import ConfigError, FrostlineError
from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.model.loader import load_assistant, load_target
from frostline.model.spec import assistant_spec, target_spec
from frostline.train import tiny_config
from frostline.train.card import Facts, assistant_card, target_card
from frostline.train.data import QUIET_WEIGHT, Documents, Packer, corpus_kinds, join, load_documents
from frostline.train.drafter import DrafterSettings, new_assistant, train_drafter
from frostline.train.evaluate import EvalSettings, evaluate, read_prompts
from frostline.train.export import folder_bytes, write_assistant, write_target
from frostline.train.initial import initialise
from frostline.train.on_policy import OnPolicySettings, continuations, drafter_text, read_documents, save_documents
from frostline.train.pretrain import PretrainSettings, pretrain
from frostline.train.schedule import Budget
from frostline.train.tokenizer import load_tokenizer

STAGES = ("target", "sample", "drafter", "evaluate")


@dataclass(frozen=True, kw_only=True)
class TinyRun:
    """Where everything lies and how long it may take. steps: instead of minutes, for trials (both stages)."""

    corpus: Path
    out: Path
    tokenizer: Path
    prompts: Path
    device: torch.device
    minutes_target: float = 5.0
    minutes_drafter: float = 4.0
    steps: int | None = None
    seed: int = 0
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    on_policy: OnPolicySettings = field(default_factory=OnPolicySettings)
    evaluation: EvalSettings = field(default_factory=EvalSettings)

    @property
    def target_folder(self) -> Path:
        return self.out / "tiny"

    @property
    def assistant_folder(self) -> Path:
        return self.out / "tiny-assistant"

    def budget(self, minutes: float) -> Budget:
        return Budget(minutes=minutes) if self.steps is None else Budget(steps=self.steps)

    def documents(self, split: str) -> dict[str, Documents]:
        opening = self.opening
        return {kind: load_documents(self.corpus, kind, split, opening=opening) for kind in corpus_kinds(self.corpus)}

    @property
    def opening(self) -> list[int]:
        """Token ids that begin a model turn."""
        ids: list[int] = load_tokenizer(self.tokenizer).encode("<|turn>model\n", add_special_tokens=False).ids
        return ids


def train_tiny(
    corpus: Path,
    out: Path,
    *,
    tokenizer: Path,
    prompts: Path,
    device: torch.device | str = "cuda",
    minutes_target: float = 5.0,
    minutes_drafter: float = 4.0,
    stages: Sequence[str] = STAGES,
    seed: int = 0,
    steps: int | None = None,
    batch_tokens: int | None = None,
    rows_per_kind: int | None = None,
    compile_model: bool = False,
    facts: Facts | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the stages and return the metrics, which are also in out/metrics.json.

    corpus: what `frostline train corpus` wrote. tokenizer: a folder with the tokenizer. prompts: held-out prompts
    (JSON lines). batch_tokens: per step of the target; the drafter's is half of it. rows_per_kind: continuations that
    the drafter learns from. facts: for the model cards, which are written when it is given. Raises ConfigError for
    what is missing.
    """
    unknown = sorted(set(stages) - set(STAGES))
    if unknown:
        raise ConfigError(f"unknown stage {unknown[0]!r}; stages are {', '.join(STAGES)}")
    settings, drafting, own = PretrainSettings(), DrafterSettings(), OnPolicySettings(seed=seed)
    batch = batch_tokens or settings.batch_tokens
    run = TinyRun(
        corpus=corpus,
        out=out,
        tokenizer=tokenizer,
        prompts=prompts,
        device=torch.device(device),
        minutes_target=minutes_target,
        minutes_drafter=minutes_drafter,
        steps=steps,
        seed=seed,
        pretrain=replace(settings, batch_tokens=batch, compile=compile_model, seed=seed),
        drafter=replace(drafting, batch_tokens=batch // 2, compile=compile_model, seed=seed),
        on_policy=replace(own, rows_per_kind=rows_per_kind or own.rows_per_kind),
    )
    return run_stages(run, stages, facts, console or Console(highlight=False))


def run_stages(run: TinyRun, stages: Sequence[str], facts: Facts | None, console: Console) -> dict[str, Any]:
    """The stages in their order, metrics saved after each."""
    corpus_kinds(run.corpus)
    run.out.mkdir(parents=True, exist_ok=True)
    path = run.out / "metrics.json"
    metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    metrics["parameters"] = tiny_config.parameter_counts()
    metrics["corpus"] = json.loads((run.corpus / "index.json").read_text(encoding="utf-8"))
    metrics["quiet_weight"], metrics["drafter_depths"] = QUIET_WEIGHT, run.drafter.depths
    steps: dict[str, Callable[[TinyRun, Console], dict[str, Any]]] = {
        "target": target_stage,
        "sample": sample_stage,
        "drafter": drafter_stage,
        "evaluate": evaluate_stage,
    }
    for stage in STAGES:
        if stage in stages:
            console.rule(stage)
            metrics |= steps[stage](run, console)
            path.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
            _tell_memory(run.device, console)
    if facts is not None and {"target", "drafter", "on_policy_tokens"} <= metrics.keys():
        (run.target_folder / "README.md").write_text(target_card(metrics, facts), encoding="utf-8")
        (run.assistant_folder / "README.md").write_text(assistant_card(metrics, facts), encoding="utf-8")
    folders = [folder for folder in (run.target_folder, run.assistant_folder) if folder.is_dir()]
    console.print(f"{folder_bytes(*folders):,} bytes in {', '.join(map(str, folders))}", soft_wrap=True)
    return metrics


def target_stage(run: TinyRun, console: Console) -> dict[str, Any]:
    """Train the target and save it, before anything else can fail."""
    config = tiny_config.target_config()
    decoder = Decoder(target_spec(config), dtype=torch.float32, device=run.device)
    initialise(decoder, run.seed)
    train = join(list(run.documents("train").values()))
    console.print(f"{len(train.tokens):,} tokens in {len(train):,} documents")
    result = pretrain(decoder, train, run.documents("heldout"), run.budget(run.minutes_target), run.pretrain, console)
    generation = tiny_config.target_generation_config()
    write_target(decoder, config, generation, run.target_folder, tokenizer=run.tokenizer)
    return {"target": result}


def sample_stage(run: TinyRun, console: Console) -> dict[str, Any]:
    """The target's own text."""
    target = load_target(run.target_folder, dtype=_frozen_dtype(run.device), device=run.device)
    own = continuations(target, run.documents("train"), run.opening, run.on_policy, console)
    save_documents(own, run.out / "on_policy.npz")
    return {"on_policy_tokens": len(own.tokens)}


def drafter_stage(run: TinyRun, console: Console) -> dict[str, Any]:
    """Train the assistant against the target as it was saved, in bfloat16 values."""
    path = run.out / "on_policy.npz"
    if not path.is_file():
        raise ConfigError(f"{path} is missing: run the stage `sample` before `drafter`")
    target = load_target(run.target_folder, dtype=_frozen_dtype(run.device), device=run.device)
    config = tiny_config.assistant_config()
    assistant = Assistant(assistant_spec(config), target.spec, dtype=torch.float32, device=run.device)
    new_assistant(assistant, target, run.seed)
    text = drafter_text(read_documents(path), run.documents("train"), run.on_policy)
    packer = Packer(text, batch_tokens=run.drafter.batch_tokens, device=run.device, seed=run.seed)
    result = train_drafter(assistant, target, packer, run.budget(run.minutes_drafter), run.drafter, console)
    write_assistant(assistant, config, tiny_config.assistant_generation_config(), run.assistant_folder)
    return {"drafter": result}


def evaluate_stage(run: TinyRun, console: Console) -> dict[str, Any]:
    """Measure the pair as saved, in float32."""
    target = load_target(run.target_folder, dtype=torch.float32, device=run.device)
    assistant = load_assistant(run.assistant_folder, target.spec, dtype=torch.float32, device=run.device)
    prompts = read_prompts(run.prompts, load_tokenizer(run.tokenizer))
    return {"evaluation": evaluate(target, assistant, prompts, run.evaluation, console)}


def _frozen_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _tell_memory(device: torch.device, console: Console) -> None:
    if device.type == "cuda":
        console.print(f"peak GPU memory {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB")
        torch.cuda.reset_peak_memory_stats(device)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit code 2 and one line for an error the user can mend."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m frostline.train.tiny", description="Train the bundled pair.")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes-target", type=float, default=5.0)
    parser.add_argument("--minutes-drafter", type=float, default=4.0)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--batch-tokens", type=int, default=None)
    parser.add_argument("--rows-per-kind", type=int, default=None)
    parser.add_argument("--compile", dest="compile_model", action="store_true")
    parser.add_argument("--date", default="")
    parser.add_argument("--hardware", default="")
    parser.add_argument("--commit", default="")
    options = vars(parser.parse_args(given))
    date, hardware, commit = (options.pop(name) for name in ("date", "hardware", "commit"))
    command = shlex.join(["python", "-m", "frostline.train.tiny", *given])
    facts = Facts(date=date, hardware=hardware, commit=commit, command=command) if date else None
    console = Console(highlight=False)
    try:
        train_tiny(
            options.pop("corpus"),
            options.pop("out"),
            stages=options.pop("stages").split(","),
            facts=facts,
            console=console,
            **options,
        )
    except FrostlineError as error:
        console.print(f"error: {error}", soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
