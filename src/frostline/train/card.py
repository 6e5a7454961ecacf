"""Model cards of the bundled pair, written from its configs and measurements. Knows nothing of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

WAYS = {
    "greedy": "greedy, drafter",
    "greedy_hidden_zeroed": "greedy, seed hidden zeroed",
    "greedy_kv_zeroed": "greedy, frozen KV zeroed",
    "greedy_lookup": "greedy, prompt lookup instead",
    "sampled": "T=1, coupled drafts",
    "sampled_argmax_drafts": "T=1, argmax drafts",
    "sampled_lookup": "T=1, prompt lookup instead",
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the card says of where and when it was made."""

    date: str
    hardware: str
    commit: str
    command: str


def target_card(metrics: Mapping[str, Any], facts: Facts) -> str:
    """README.md of the target's folder."""
    training, counts, corpus = metrics["target"], metrics["parameters"], metrics["corpus"]
    losses = {name.removeprefix("held_out_"): value for name, value in training["held_out"].items()}
    return f"""---
license: apache-2.0
library_name: frostline
---
# frostline/tiny

A Gemma 4 text model in small ({counts["target"]:,} parameters), trained from scratch by `frostline train tiny` so that
the engine, its tests and its demo need no download. It has what makes Gemma 4 special: per-layer embeddings, shared
keys and values with double-wide feed-forward, sliding (64) and full layers, logit softcap, a tied head, Gemma 4's
special tokens and turn syntax. It is no assistant for people: it knows little, adds wrongly and makes things up.

## Data
{_table(("kind", "documents", "tokens", "held-out loss"), _kind_rows(corpus["kinds"], losses))}
{_sources(corpus["sources"])}
The held-out split is by content and was never trained on. Tokens of user and system turns count
{metrics["quiet_weight"]} in the loss, all others 1.

## Recipe
AdamW, linear warm-up and linear decay to zero by elapsed time, rows of 1,024 packed tokens and of 2,048 in the last
fifth, bfloat16 autocast over float32 weights, stored as bfloat16. {training["steps"]:,} steps, {training["tokens"]:,}
tokens ({training["epochs"]} passes over the shuffled documents), {training["seconds"] / 60:.1f} minutes.
{_facts(facts)}
## Licences
The weights: Apache-2.0. The texts: as listed above; NOTICE holds what their licences ask to be kept.
"""


def assistant_card(metrics: Mapping[str, Any], facts: Facts) -> str:
    """README.md of the assistant's folder, with the measured table."""
    training, counts = metrics["drafter"], metrics["parameters"]
    return f"""---
license: apache-2.0
library_name: frostline
base_model: frostline/tiny
---
# frostline/tiny-assistant

The Frozen-KV drafter of `frostline/tiny` ({counts["assistant"]:,} parameters): four query-only layers (S,S,S,F) over
the target's keys and values, constant draft position `P`, a head of 64 centroids of 64 tokens of which the best 16 are
looked at. It writes no keys and values and is of use with that target only.

## Recipe
For every row i: the target's hidden of row i, the embedding of token i+1, keys and values of rows 0..i; later depths
feed back its own hidden and the next true token. Loss: divergence from the target's own distribution, summed over
{metrics["drafter_depths"]} depths with weights 0.9^(s-1), plus a small one that teaches the centroids where that
distribution's mass lies. Text: {metrics["on_policy_tokens"]:,} tokens, continuations by the target itself of training
prompts (half greedy, half T=1, top-k 64, top-p 0.95) mixed with training documents. {training["steps"]:,} steps,
{training["tokens"]:,} rows, {training["seconds"] / 60:.1f} minutes.
{_facts(facts)}
{_measured(metrics["evaluation"]) if "evaluation" in metrics else ""}
## Licence
Apache-2.0; the training text is the target's (see its card).
"""


def _measured(evaluation: Mapping[str, Any]) -> str:
    settings, coupling = evaluation["settings"], evaluation["coupling"]
    kinds = [kind for kind in evaluation["greedy"] if kind != "overall"]
    depths = range(1, settings["num_steps"] + 1)
    lengths = [
        (title, *(f"{evaluation[way][kind]['accept_length']:.2f}" for kind in ("overall", *kinds)))
        for way, title in WAYS.items()
        if way in evaluation
    ]
    rates = [
        (title, *(f"{rate:.2f}" for rate in evaluation[way]["overall"]["per_depth"]))
        for way, title in WAYS.items()
        if way in evaluation
    ]
    rule = settings["loop_rule"]
    return f"""## Measured
{settings["prompts"]} held-out prompts, {settings["max_new"]} new tokens each, chain, K={settings["num_steps"]},
float32. Accept length is tokens per iteration, the bonus included (at most {settings["num_steps"] + 1}); iterations
whose drafts run past the end of the text are not counted. Texts are cut where
{rule["tokens"]} tokens repeat with a period of at most {rule["period"]} (the first round is kept):
{settings["greedy_tokens"]:,} greedy and {settings["sampled_tokens"]:,} sampled tokens remain.
Sampled: temperature 1, top-k 64, top-p 0.95.

Accept length:
{_table(("text and drafts", "overall", *kinds), lengths)}
Acceptance per depth, of drafts whose predecessors were all accepted:
{_table(("text and drafts", *(f"depth {depth}" for depth in depths)), rates)}
Coupled drafts at depth 1 are accepted {coupling["depth1"]:.3f} of the time; the mean of sum(min(p, q)) over the same
states, which no single draft can beat, is {coupling["best_single_draft"]:.3f} (ratio {coupling["ratio"]:.2f}).
"""


def _facts(facts: Facts) -> str:
    return f"""
Made {facts.date} on {facts.hardware}, commit {facts.commit}:

    {facts.command}
"""


def _kind_rows(kinds: Mapping[str, Any], losses: Mapping[str, float]) -> Iterable[tuple[str, ...]]:
    for kind, splits in kinds.items():
        loss = f"{losses[kind]:.3f}" if kind in losses else "-"
        yield kind, f"{splits['train']['documents']:,}", f"{splits['train']['tokens']:,}", loss


def _sources(sources: Iterable[Mapping[str, Any]]) -> str:
    rows = [(source["name"], ", ".join(source["kinds"]), source["licence"], source["notice"]) for source in sources]
    return _table(("source", "kinds", "licence", "notice"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
