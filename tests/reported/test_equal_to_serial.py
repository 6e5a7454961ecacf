"""Rows 1, 33 and 36 of reported.md: what a request gets depends neither on who shares its batch nor on the drafts.

The bundled pair in float64, where equal means equal.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from frostline.config import Schedule
from frostline.model.attention import CausalContext
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import Executor
from frostline.speculative.worker import WorkerExecutor
from tests.equality.bundled import PLAIN, Bundle, bundle, differing

TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
CHAIN = SpeculativeConfig(num_steps=4)
TREE = SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16)


def worker(device: DeviceExecutor) -> Executor:
    return WorkerExecutor(device)


WRAPS = {"sync": None, "overlap": worker}


def prompts(count: int) -> list[tuple[int, ...]]:
    """Held-out prompts, and one that is several windows long."""
    return [prompt.ids for prompt in bundle().held_out()[20 : 19 + count]] + bundle().long_prompts((150,))


@cache
def serial(count: int) -> list[RequestOutput]:
    """One by one, greedy, without drafts."""
    return bundle().llm(PLAIN, batch=1, context=512).generate(prompts(count), GREEDY)


@pytest.mark.parametrize(
    ("depth", "concurrent", "schedule"),
    [
        (5, 4, "sync"),
        (5, 4, "overlap"),
        *((depth, 4, "overlap" if depth % 2 else "sync") for depth in (1, 2, 3, 4, 6, 7, 8)),
        *((5, concurrent, "overlap") for concurrent in (2, 5, 8)),
    ],
)
def test_reported_1_concurrent_requests_equal_serial_greedy(depth: int, concurrent: int, schedule: Schedule) -> None:
    """Depth 5 with four concurrent requests turned to mush elsewhere."""
    config = SpeculativeConfig(num_steps=depth)
    llm = bundle().llm(config, wrap=WRAPS[schedule], batch=concurrent, context=512, schedule=schedule)
    found = llm.generate(prompts(8)[-concurrent:], GREEDY)
    assert differing(found, serial(8)[-concurrent:]) == []


@pytest.mark.parametrize("schedule", WRAPS)
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_reported_36_eight_requests_on_four_rows_all_get_their_reply(
    config: SpeculativeConfig, schedule: Schedule
) -> None:
    """Each ends at another length, so that a row's next request begins while its neighbours are at other positions."""
    rows = [SamplingParams(temperature=0.0, max_tokens=3 + 5 * n % 10, ignore_eos=True) for n in range(8)]
    llm = bundle().llm(config, wrap=WRAPS[schedule], batch=4, context=512, schedule=schedule, max_prefill_tokens=64)
    found = llm.generate(prompts(8), rows)
    for output, alone, row in zip(found, serial(8), rows, strict=True):
        (reply,) = output.outputs
        assert len(reply.token_ids) == row.max_tokens and reply.text
        assert reply.token_ids == alone.outputs[0].token_ids[: row.max_tokens]


@pytest.mark.parametrize(
    ("config", "batch", "budget", "page_size"),
    [(PLAIN, 8, 2048, 16), (CHAIN, 3, 37, 16), (CHAIN, 8, 2048, 5), (TREE, 5, 37, 5)],
)
def test_reported_33_text_at_temperature_0_is_exact_in_reference_precision(
    config: SpeculativeConfig, batch: int, budget: int, page_size: int
) -> None:
    """Other shapes in every forward: batch, prompt chunks, verify width, pages."""
    llm = bundle().llm(config, batch=batch, context=512, max_prefill_tokens=budget, page_size=page_size)
    assert differing(llm.generate(prompts(8), GREEDY), serial(8)) == []


def test_reported_33_in_float32_a_difference_begins_at_a_near_tie() -> None:
    """The first token that differs is one of two whose logits are as good as equal; and the README says so."""
    single = bundle("float32")
    plain, found = (_generate(single, config, batch) for config, batch in ((PLAIN, 1), (TREE, 8)))
    for prompt, ours, theirs in zip(prompts(8), found, plain, strict=True):
        if ours != theirs:
            at = next(n for n, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
            assert _gap(single, [*prompt, *theirs[:at]], ours[at], theirs[at]) < 1e-3
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    assert "Tokens are the same exactly in float64. In narrower types near ties may fall differently" in readme


def _generate(single: Bundle, config: SpeculativeConfig, batch: int) -> list[tuple[int, ...]]:
    outputs = single.llm(config, batch=batch, context=512).generate(prompts(8), GREEDY)
    return [output.outputs[0].token_ids for output in outputs]


@torch.inference_mode()
def _gap(single: Bundle, known: list[int], one: int, other: int) -> float:
    target = single.pair.target
    context = CausalContext(target.spec, target.rotary, torch.arange(len(known)))
    logits = target.logits(target(torch.tensor([known]), context)[0, -1])
    return float((logits[one] - logits[other]).abs())
