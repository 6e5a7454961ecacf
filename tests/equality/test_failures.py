"""What must touch nobody else: a request whose logits become NaN, and the padding rows of a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from frostline import LLM, SamplingParams, SpeculativeConfig
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.iteration import iterate
from frostline.speculative.pair import Pair
from frostline.speculative.plan import Plan
from frostline.speculative.step import PrefillChunk, RowInit, Step, TableWrite
from tests.equality.bundled import PLAIN, bundle, differing, sampled

CHAIN = SpeculativeConfig(num_steps=4)
TREE = SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16)
SHAPES = {"plain": PLAIN, "chain": CHAIN, "tree": TREE}


def poisoned(token: int) -> Pair:
    """The pair with NaN in the per-layer embedding of one token: whoever reads the token has NaN logits from there."""
    pair = bundle().pair
    target = copy.deepcopy(pair.target)
    with torch.no_grad():
        target.embed_tokens_per_layer.weight[token] = torch.nan
    target.prepare()
    return replace(pair, target=target)


def engine(config: SpeculativeConfig, pair: Pair | None = None, **sizes: Any) -> tuple[LLM, DeviceExecutor]:
    devices: list[DeviceExecutor] = []

    def keep(device: DeviceExecutor) -> DeviceExecutor:
        devices.append(device)
        return device

    return bundle().llm(config, wrap=keep, pair=pair, **sizes), devices[0]


def clean_prompts(count: int, without: int) -> list[tuple[int, ...]]:
    return [prompt.ids for prompt in bundle().held_out()[:60] if without not in prompt.ids][:count]


def is_finite(device: DeviceExecutor) -> bool:
    pools_are = all(bool(pool.rows.isfinite().all()) for pool in device._cache.pools.values())
    return pools_are and bool(device._rows.hidden.isfinite().all())


# A token of the vocabulary that no held-out prompt and no continuation below has.
RARE = 4000


@pytest.mark.parametrize("mode", SHAPES)
def test_nan_in_a_prompt_fails_that_request_alone(mode: str) -> None:
    """Its pages are the next ones given out: so few exist that every later request gets some of them."""
    good = clean_prompts(6, RARE)
    bad = (*good[0][:20], RARE, *good[0][20:])
    rows = [sampled(n, max_tokens=14) if n % 2 else SamplingParams(temperature=0.0, max_tokens=14) for n in range(8)]
    prompts = [good[0], bad, *good[1:4], bad, *good[4:]]
    llm, device = engine(SHAPES[mode], poisoned(RARE), batch=3, context=256, kv_pages=3 * 13)
    found = llm.generate(prompts, rows)
    failed = [n for n, output in enumerate(found) if output.outputs[0].finish_reason == "error"]
    assert failed == [1, 5]
    assert all("NaN" in str(found[n].outputs[0].stop_reason) for n in failed)
    clean = [n for n in range(8) if n not in failed]
    expected = bundle().llm(PLAIN, batch=1, context=256).generate([prompts[n] for n in clean], [rows[n] for n in clean])
    assert differing([found[n] for n in clean], expected) == []
    assert is_finite(device)


@pytest.mark.parametrize("mode", SHAPES)
def test_nan_in_the_middle_of_an_answer_fails_that_request_alone(mode: str) -> None:
    prompts = clean_prompts(5, RARE)
    rows = [SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)] * 5
    expected = bundle().llm(PLAIN, batch=1, context=256).generate(prompts, rows)
    told = [output.outputs[0].token_ids for output in expected]
    others = {token for n in (0, 1, 3, 4) for token in (*prompts[n], *told[n])}
    token = next(token for token in told[2][6:] if token not in others and token not in prompts[2])
    llm, device = engine(SHAPES[mode], poisoned(token), batch=5, context=256)
    found = llm.generate(prompts, rows)
    assert found[2].outputs[0].finish_reason == "error"
    kept = found[2].outputs[0].token_ids
    assert kept == told[2][: len(kept)] and len(kept) <= told[2].index(token) + 1
    rest = (0, 1, 3, 4)
    assert differing([found[n] for n in rest], [expected[n] for n in rest]) == []
    assert is_finite(device)


@pytest.mark.parametrize("mode", SHAPES)
def test_nan_does_not_reach_others_through_the_padding_page(mode: str) -> None:
    """The failing prompt is padded to a longer one's length, so its padding rows are NaN too and go to page 0, which
    short requests gather, under a mask, for the rows past their last page."""
    held_out = clean_prompts(30, RARE)
    long = sum(held_out[:3], ())[:110]
    bad = (*sum(held_out[3:6], ())[:55], RARE)
    short = [sum(held_out[6:9], ())[:57], sum(held_out[9:12], ())[:58]]
    greedy = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    # The first is on its way, with few pages, when the failing prompt arrives beside a long one.
    prompts = [held_out[12][:30], short[0], bad, long, short[1]]
    rows = [replace(greedy, max_tokens=8), greedy, greedy, replace(greedy, max_tokens=40), greedy]
    llm, device = engine(SHAPES[mode], poisoned(RARE), batch=5, context=256, page_size=8)
    expected = bundle().llm(PLAIN, batch=1, context=256).generate(prompts, [replace(row) for row in rows])
    found = llm.generate(prompts, rows)
    assert [output.outputs[0].finish_reason for output in found] == ["length", "length", "error", "length", "length"]
    rest = [0, 1, 3, 4]
    assert differing([found[n] for n in rest], [expected[n] for n in rest]) == []
    assert is_finite(device)


# ------------------------------------------------------------------------------------------ padding rows


def ready(config: SpeculativeConfig) -> DeviceExecutor:
    """A device side with two seeded requests in rows 1 and 3."""
    device, _ = bundle().executor(config, batch=4, context=256)
    prompts = clean_prompts(2, RARE)
    rows = (1, 3)
    device.launch(
        Step(
            inits=tuple(
                RowInit(row=row, prompt_len=len(ids), seed=9, temperature=t, top_k=64, top_p=0.95, min_p=0.0, depth=4)
                for row, ids, t in zip(rows, prompts, (0.0, 1.0), strict=True)
            ),
            tables=tuple(
                TableWrite(row=row, group=group, start=0, pages=tuple(range(row * 12, row * 12 + 12)))
                for row in rows
                for group in ("sliding", "full")
            ),
            prefill=tuple(
                PrefillChunk(row=row, start=0, tokens=ids, last=True) for row, ids in zip(rows, prompts, strict=True)
            ),
            plan=Plan(num_steps=0, verify_width=1, sampled=True, filtered=True, max_top_k=64),
        )
    )
    return device


def iterated(device: DeviceExecutor, config: SpeculativeConfig, rows: Sequence[int]) -> tuple[list[Any], list[Any]]:
    plan = Plan(
        num_steps=config.num_steps,
        topk=config.topk,
        verify_width=config.verify_width,
        sampled=True,
        filtered=True,
        max_top_k=64,
    )
    tokens, counts = [], []
    with torch.inference_mode():
        for _ in range(6):
            run = iterate(device.pair, device._cache, device._rows, device._rows.index(rows), plan, 200)
            real = [n for n, row in enumerate(rows) if row]
            tokens.append(run.tokens_BK[real].tolist())
            counts.append(run.count_B[real].tolist())
    return tokens, counts


@pytest.mark.parametrize("mode", SHAPES)
def test_reported_20_padding_rows_touch_only_row_0_and_page_0(mode: str) -> None:
    config = SHAPES[mode]
    alone, padded = ready(config), ready(config)
    untouched = padded._rows.tables["full"].clone()
    assert iterated(alone, config, (1, 3)) == iterated(padded, config, (0, 1, 0, 3, 0, 0))
    size = padded.page_size
    for group, pool in padded._cache.pools.items():
        expected = alone._cache.pools[group].rows
        assert (pool.rows[:, size:] - expected[:, size:]).abs().max() < 1e-9
        owned = [page * size + n for row in (1, 3) for page in range(row * 12, row * 12 + 12) for n in range(size)]
        others = sorted(set(range(size, pool.rows.shape[1])) - set(owned))
        assert not pool.rows[:, others].any()
    for name in ("length", "bonus", "hidden"):
        ours, expected = getattr(padded._rows, name), getattr(alone._rows, name)
        assert (ours - expected).abs().max() < 1e-9
        assert not ours[0].any() and not ours[[2, 4]].any()
    assert torch.equal(padded._rows.tables["full"], untouched)
