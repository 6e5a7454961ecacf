"""Measures a pair on held-out prompts: accept length per kind of text, acceptance per depth, and what ablations cost.

Texts are generated without drafting, cut where they loop (loops.py), then replayed (replay.py), so one text serves
every way of drafting.

Accept length is tokens per iteration, the bonus included (1 to K + 1). "Per depth" is conditional: of the drafts at
this depth whose predecessors were all accepted, the share accepted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import Tensor

from frostline.errors import ConfigError
from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.train.generate import Prompt, generate
from frostline.train.lookup import lookup_drafts
from frostline.train.loops import LOOP_PERIOD, LOOP_TOKENS, loop_starts
from frostline.train.replay import Ablation, Sampling, Text, draft_everywhere, walk

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLED = Sampling(temperature=1.0, top_k=64, top_p=0.95)
_TEXTS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    num_steps: int = 4
    max_new: int = 128
    prompts_per_kind: int = 60
    seed: int = 1234


@dataclass(kw_only=True)
class Tally:
    """Counts over iterations; what is reported is derived."""

    iterations: int = 0
    tokens: int = 0
    reached: list[int]
    accepted: list[int]
    overlap: float = 0.0

    @classmethod
    def empty(cls, num_steps: int) -> Tally:
        return cls(reached=[0] * num_steps, accepted=[0] * num_steps)

    def add(self, accepted: int, overlap: float) -> None:
        self.iterations += 1
        self.tokens += accepted + 1
        self.overlap += overlap
        for depth in range(min(accepted + 1, len(self.reached))):
            self.reached[depth] += 1
            self.accepted[depth] += int(depth < accepted)

    def summary(self) -> dict[str, Any]:
        return {
            "iterations": self.iterations,
            "accept_length": round(self.tokens / max(1, self.iterations), 3),
            "per_depth": [round(a / max(1, r), 3) for a, r in zip(self.accepted, self.reached, strict=True)],
        }


def read_prompts(path: Path, tokenizer: Tokenizer) -> dict[str, list[tuple[int, ...]]]:
    """Held-out prompts by kind from JSON lines of `kind` and `prompt` (text that begins with `<bos>`)."""
    if not path.is_file():
        raise ConfigError(f"no held-out prompts at {path}: build the corpus first with `frostline train corpus`")
    prompts: dict[str, list[tuple[int, ...]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ids = tokenizer.encode(row["prompt"], add_special_tokens=False).ids
        prompts.setdefault(row["kind"], []).append(tuple(ids))
    return prompts


def evaluate(
    target: Decoder,
    assistant: Assistant,
    prompts: dict[str, list[tuple[int, ...]]],
    settings: EvalSettings,
    console: Console,
) -> dict[str, Any]:
    """All measurements, as plain JSON values: greedy and sampled text, each way of drafting, per kind and overall."""
    greedy = written(target, prompts, Sampling(), settings)
    sampled = written(target, prompts, SAMPLED, settings)
    ways: dict[str, tuple[list[Text], Sampling, Ablation]] = {
        "greedy": (greedy, Sampling(), "none"),
        "greedy_hidden_zeroed": (greedy, Sampling(), "hidden"),
        "greedy_kv_zeroed": (greedy, Sampling(), "kv"),
        "sampled": (sampled, SAMPLED, "none"),
        "sampled_argmax_drafts": (sampled, replace(SAMPLED, argmax_drafts=True), "none"),
    }
    results: dict[str, Any] = {"settings": _settings(settings, greedy, sampled)}
    for name, (texts, sampling, ablation) in ways.items():
        drafted = _drafted(target, assistant, texts, settings.num_steps, sampling, ablation)
        results[name] = tallied(texts, drafted, settings.num_steps)
        console.print(f"{name}: {_line(results[name])}", soft_wrap=True)
    for name, texts in (("greedy_lookup", greedy), ("sampled_lookup", sampled)):
        drafted = [(_looked_up(text, settings.num_steps), None) for text in texts]
        results[name] = tallied(texts, drafted, settings.num_steps)
        console.print(f"{name}: {_line(results[name])}", soft_wrap=True)
    first, best = results["sampled"]["overall"]["per_depth"][0], results["sampled"]["overall"]["overlap"]
    results["coupling"] = {"depth1": first, "best_single_draft": best, "ratio": round(first / max(best, 1e-9), 3)}
    return results


def written(
    target: Decoder, prompts: dict[str, list[tuple[int, ...]]], sampling: Sampling, settings: EvalSettings
) -> list[Text]:
    """What the target writes after each prompt, cut where it loops."""
    asked = [(kind, ids) for kind, rows in prompts.items() for ids in rows[: settings.prompts_per_kind]]
    made = generate(
        target,
        [
            Prompt(
                tokens=ids,
                seed=settings.seed + number,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
            )
            for number, (_, ids) in enumerate(asked)
        ],
        max_new=settings.max_new,
        stop=target.spec.eos_token_ids,
        batch=512,
    )
    texts = []
    for number, ((kind, ids), new, end) in enumerate(zip(asked, made, loop_starts(made), strict=True)):
        texts.append(Text(kind=kind, tokens=(*ids, *new[:end]), prompt_length=len(ids), seed=settings.seed + number))
    return texts


def tallied(
    texts: Sequence[Text], drafted: Sequence[tuple[Tensor, Tensor | None]], num_steps: int
) -> dict[str, dict[str, Any]]:
    """Walk every text; the summary per kind and overall, with the mean overlap at the visited places if known."""
    tallies: dict[str, Tally] = {"overall": Tally.empty(num_steps)}
    known = False
    for text, (drafts_RK, overlap_R) in zip(texts, drafted, strict=True):
        known = known or overlap_R is not None
        for place, accepted in walk(text, drafts_RK):
            overlap = 0.0 if overlap_R is None else float(overlap_R[place - text.prompt_length])
            for name in (text.kind, "overall"):
                tallies.setdefault(name, Tally.empty(num_steps)).add(accepted, overlap)
    summaries = {}
    for name, tally in tallies.items():
        summaries[name] = tally.summary()
        if known:
            summaries[name]["overlap"] = round(tally.overlap / max(1, tally.iterations), 3)
    return summaries


def _drafted(
    target: Decoder,
    assistant: Assistant,
    texts: list[Text],
    num_steps: int,
    sampling: Sampling,
    ablation: Ablation,
) -> list[tuple[Tensor, Tensor | None]]:
    made: list[tuple[Tensor, Tensor | None]] = []
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[first : first + _TEXTS_AT_ONCE]
        found = draft_everywhere(target, assistant, part, num_steps=num_steps, sampling=sampling, ablation=ablation)
        made += [(drafts.drafts, drafts.overlap) for drafts in found]
    return made


def _looked_up(text: Text, num_steps: int) -> Tensor:
    """Lookup drafts in the replay's layout; -1, which is no token, where lookup has none."""
    rows = []
    for place in range(text.prompt_length, len(text.tokens)):
        found = lookup_drafts(text.tokens, place, num_steps)
        rows.append(found + [-1] * (num_steps - len(found)))
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), num_steps)


def _settings(settings: EvalSettings, greedy: list[Text], sampled: list[Text]) -> dict[str, Any]:
    return {
        "num_steps": settings.num_steps,
        "max_new": settings.max_new,
        "prompts": len(greedy),
        "seed": settings.seed,
        "greedy_tokens": sum(len(t.tokens) - t.prompt_length for t in greedy),
        "sampled_tokens": sum(len(t.tokens) - t.prompt_length for t in sampled),
        "sampling": {"temperature": SAMPLED.temperature, "top_k": SAMPLED.top_k, "top_p": SAMPLED.top_p},
        "loop_rule": {"tokens": LOOP_TOKENS, "period": LOOP_PERIOD},
    }


def _line(result: dict[str, dict[str, Any]]) -> str:
    kinds = "  ".join(f"{kind} {summary['accept_length']:.2f}" for kind, summary in result.items() if kind != "overall")
    overall = result["overall"]
    return f"accept length {overall['accept_length']:.2f}, per depth {overall['per_depth']}  ({kinds})"
