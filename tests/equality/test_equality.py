"""Speculation changes nothing that a user gets: chain, tree, any depth, any batch, greedy and sampled, in float64.

`make test` runs a few prompts; `make prove` 200 prompts of 128 tokens for every mode. Two processes share the long run:
`make prove ARGS="-k sampled"` beside `make prove ARGS="-k 'not sampled'"`, with FROSTLINE_PROVE_FIGURES naming the
folder where the figures are left.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from tests.equality.bundled import PLAIN, accept_length, bundle, differing, report, sampled

CHAINS = {f"chain{k}": SpeculativeConfig(num_steps=k) for k in range(1, 7)}
TREES = {
    "tree-K3-k2-N6": SpeculativeConfig(num_steps=3, topk=2, num_draft_tokens=6),
    "tree-K4-k2-N12": SpeculativeConfig(num_steps=4, topk=2, num_draft_tokens=12),
    "tree-K4-k3-N16": SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16),
    "tree-K6-k3-N24": SpeculativeConfig(num_steps=6, topk=3, num_draft_tokens=24),
}
WIDEST = {"tree-K8-k3-N64": SpeculativeConfig(num_steps=8, topk=3, num_draft_tokens=64)}
MODES = {"plain": PLAIN} | CHAINS | TREES | WIDEST
RULES = ("greedy", "sampled")

PROMPTS, TOKENS = 200, 128
# New tokens of the short run.
SHORT = 16
LONG = (300, 410, 520, 630, 350, 480, 570, 650)


def params(rule: str, count: int, tokens: int) -> list[SamplingParams]:
    if rule == "greedy":
        return [SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)] * count
    return [sampled(1000 + number, max_tokens=tokens) for number in range(count)]


def varied(count: int, tokens: int, depth: int) -> list[SamplingParams]:
    """A batch in which no two neighbours are alike: rule, filters, length, end of text, own depth."""
    rows = []
    for n in range(count):
        temperature = (0.0, 1.0, 0.7, 0.0, 1.3)[n % 5]
        rows.append(
            SamplingParams(
                temperature=temperature,
                top_k=(64, 0, 20, 1)[n % 4],
                top_p=(0.95, 1.0, 0.8)[n % 3],
                min_p=0.05 if n % 7 == 3 else 0.0,
                seed=77 + n,
                max_tokens=1 + (tokens * (n * 37 % 100)) // 100,
                ignore_eos=n % 2 == 0,
                stop=("\n",) if n % 6 == 1 else (),
                num_steps=n * 5 % (depth + 1),
            )
        )
    return rows


def without_depth(rows: list[SamplingParams]) -> list[SamplingParams]:
    return [replace(row, num_steps=None) for row in rows]


def long_run_prompts() -> list[tuple[int, ...]]:
    """Held-out prompts and, last, some of many windows."""
    held_out = [prompt.ids for prompt in bundle().held_out()]
    return held_out[: PROMPTS - len(LONG)] + bundle().long_prompts(LONG)


def short_run_prompts() -> list[tuple[int, ...]]:
    return [prompt.ids for prompt in bundle().held_out()[:5]] + bundle().long_prompts((330,))


@cache
def plain_short(rule: str) -> list[RequestOutput]:
    prompts = short_run_prompts()
    return bundle().llm(PLAIN, batch=4, context=512).generate(prompts, params(rule, len(prompts), SHORT))


def varied_prompts() -> list[tuple[int, ...]]:
    return [prompt.ids for prompt in bundle().held_out()[6:16]]


@cache
def varied_short() -> list[RequestOutput]:
    """One by one, without drafts."""
    prompts = varied_prompts()
    return bundle().llm(PLAIN, batch=1, context=512).generate(prompts, without_depth(varied(len(prompts), 24, 1)))


@cache
def plain_long(rule: str) -> list[RequestOutput]:
    return bundle().llm(PLAIN, batch=40).generate(long_run_prompts(), params(rule, PROMPTS, TOKENS))


FEW = [(mode, "greedy") for mode in MODES if mode != "plain"]
FEW += [(mode, "sampled") for mode in ("chain1", "chain4", "chain6", "tree-K4-k2-N12", "tree-K4-k3-N16")]


@pytest.mark.parametrize(("mode", "rule"), FEW)
def test_every_mode_gives_the_tokens_of_plain_decoding(mode: str, rule: str) -> None:
    """Three at a time of six requests, so that they join and leave while others are on their way."""
    prompts = short_run_prompts()
    found = bundle().llm(MODES[mode], batch=3, context=512).generate(prompts, params(rule, len(prompts), SHORT))
    assert differing(found, plain_short(rule)) == []
    assert accept_length(found) > 1.2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ["plain", "chain4", "tree-K4-k3-N16"])
def test_batch_one_gives_the_tokens_of_plain_decoding(mode: str, rule: str) -> None:
    prompts = short_run_prompts()[2:4]
    found = bundle().llm(MODES[mode], batch=1, context=512).generate(prompts, params(rule, 6, SHORT)[2:4])
    assert differing(found, plain_short(rule)[2:4]) == []


@pytest.mark.parametrize("mode", ["chain5", "tree-K4-k3-N16"])
def test_rows_of_every_kind_share_a_batch(mode: str) -> None:
    """Greedy and sampled rows, filters on and off, own depths from 0 to K, stops: as plain decoding one by one."""
    prompts = varied_prompts()
    rows = varied(len(prompts), 24, MODES[mode].num_steps)
    found = bundle().llm(MODES[mode], batch=5, context=512, page_size=8).generate(prompts, rows)
    assert differing(found, varied_short()) == []
    assert {output.outputs[0].finish_reason for output in found} == {"stop", "length"}
    shallow = [output for output, row in zip(found, rows, strict=True) if row.num_steps == 0]
    assert shallow and all(output.stats.drafted == 0 for output in shallow)


@pytest.mark.parametrize("mode", ["chain4", "tree-K4-k3-N16"])
def test_reported_43_prompts_of_very_different_lengths_share_a_batch(mode: str) -> None:
    held_out = bundle().held_out()
    whole = held_out[0].ids + held_out[6].ids
    prompts = [whole[:n] for n in (1, 2, 15, 16, 17, 63, 64, 65, 90)] + bundle().long_prompts((200,))
    rows = params("greedy", len(prompts), 12)
    found = bundle().llm(MODES[mode], batch=len(prompts), context=512).generate(prompts, rows)
    assert differing(found, bundle().llm(PLAIN, batch=1, context=512).generate(prompts, rows)) == []


def test_reported_03_the_first_iteration_has_a_seed() -> None:
    """Every request is iterated in the tick after its prompt's last chunk, whatever the chunks were."""
    prompts = short_run_prompts()
    llm = bundle().llm(MODES["chain4"], batch=6, context=512)
    llm._engine.loop._scheduler._max_prefill_tokens = 21
    assert differing(llm.generate(prompts, params("greedy", len(prompts), SHORT)), plain_short("greedy")) == []


# --------------------------------------------------------------------------------------------- make prove


def _prove(name: str, rule: str, config: SpeculativeConfig, *, batch: int, every: int) -> None:
    prompts, rows = long_run_prompts()[::every], params(rule, PROMPTS, TOKENS)[::every]
    started = time.monotonic()
    found = bundle().llm(config, batch=batch).generate(prompts, rows)
    wrong = differing(found, plain_long(rule)[::every])
    report(f"equality-{rule}-{name}", _figures(found, wrong, batch, time.monotonic() - started))
    assert wrong == []


def _figures(found: list[RequestOutput], wrong: list[int], batch: int, seconds: float) -> dict[str, Any]:
    iterations = sum(output.stats.iterations for output in found)
    return {
        "prompts": len(found),
        "tokens": sum(len(output.outputs[0].token_ids) for output in found),
        "batch": batch,
        "iterations": iterations,
        "accept_length": round(accept_length(found), 3),
        "differing_prompts": len(wrong),
        "seconds": round(seconds, 1),
    }


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [*CHAINS, *TREES])
def test_prove_equality(mode: str, rule: str) -> None:
    _prove(mode, rule, MODES[mode], batch=40, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_prove_equality_of_the_widest_tree(rule: str) -> None:
    _prove("tree-K8-k3-N64", rule, MODES["tree-K8-k3-N64"], batch=24, every=8)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("mode", "every"), [("plain", 8), ("chain4", 2), ("tree-K4-k3-N16", 4)])
def test_prove_equality_at_batch_one(mode: str, every: int, rule: str) -> None:
    _prove(f"{mode}-batch1", rule, MODES[mode], batch=1, every=every)


@cache
def _varied_plain() -> list[RequestOutput]:
    return bundle().llm(PLAIN, batch=7).generate(long_run_prompts(), without_depth(varied(PROMPTS, TOKENS, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chain6", "tree-K6-k3-N24"])
def test_prove_equality_of_mixed_batches(mode: str) -> None:
    started = time.monotonic()
    found = bundle().llm(MODES[mode], batch=13).generate(long_run_prompts(), varied(PROMPTS, TOKENS, 6))
    wrong = differing(found, _varied_plain())
    report(f"equality-mixed-{mode}", _figures(found, wrong, 13, time.monotonic() - started))
    assert wrong == []
