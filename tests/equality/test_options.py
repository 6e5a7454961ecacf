"""Options that change logits give the tokens of plain decoding under chain and tree, and plain decoding is right.

float64, the bundled pair. Rows of a batch differ in their options, so that they join, leave and share iterations.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import pytest

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from frostline.config import Schedule
from frostline.speculative.worker import WorkerExecutor
from tests.equality.bundled import PLAIN, accept_length, bundle, differing, report
from tests.equality.options import FEW, emitted, equal_entries, option_rows

MODES = {
    "chain": SpeculativeConfig(num_steps=4),
    "tree-k2": SpeculativeConfig(num_steps=3, topk=2, num_draft_tokens=8),
    "tree-k3": SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16),
}
RULES = {"greedy": 0.0, "sampled": 1.0}
TOKENS = 24
FEW_PREEMPTED = (("plain", "overlap"), ("chain", "sync"), ("tree-k3", "overlap"))
PREEMPTED = [
    pytest.param(mode, schedule, marks=() if (mode, schedule) in FEW_PREEMPTED else pytest.mark.slow)
    for mode in ("plain", *MODES)
    for schedule in ("sync", "overlap")
]


def prompts(count: int) -> list[tuple[int, ...]]:
    """The last one is many windows long."""
    held_out = [prompt.ids for prompt in bundle().held_out()[20:]]
    return held_out[: count - 1] + bundle().long_prompts((210,))


@cache
def plain(rule: str) -> list[RequestOutput]:
    rows = option_rows(RULES[rule], TOKENS)
    return bundle().llm(PLAIN, batch=1, context=512).generate(prompts(len(rows)), rows)


@pytest.mark.parametrize("rule", RULES)
def test_plain_decoding_with_options_is_a_dense_forward_token_by_token(rule: str) -> None:
    for prompt, row, output in zip(prompts(10), option_rows(RULES[rule], TOKENS), plain(rule), strict=True):
        ids = output.outputs[0].token_ids[:12]
        assert emitted(bundle(), prompt, row, output.seed, len(ids)) == list(ids), row


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", MODES)
def test_every_option_under_speculation_gives_the_tokens_of_plain_decoding(mode: str, rule: str) -> None:
    rows = option_rows(RULES[rule], TOKENS)
    found = bundle().llm(MODES[mode], batch=4, context=512).generate(prompts(len(rows)), rows)
    assert differing(found, plain(rule)) == []
    # Drafts go through the same rules; without them, a bias or mask would leave nothing to accept.
    assert accept_length(found) > 1.5


@pytest.mark.parametrize("mode", ["chain", "tree-k3"])
def test_recorded_iterations_keep_the_counts(mode: str) -> None:
    rows = option_rows(0.0, TOKENS)
    found = bundle().llm(MODES[mode], batch=10, context=512, capture_after=0).generate(prompts(len(rows)), rows)
    assert differing(found, plain("greedy")) == []


@pytest.mark.parametrize("mode", ["plain", *MODES])
def test_a_request_without_options_is_untouched_by_its_company(mode: str) -> None:
    config = PLAIN if mode == "plain" else MODES[mode]
    rows = option_rows(1.0, TOKENS)
    bare = rows[5]
    together = bundle().llm(config, batch=10, context=512).generate(prompts(len(rows)), rows)
    alone = bundle().llm(config, batch=1, context=512).generate(prompts(len(rows))[5], bare)
    assert differing(together[5:6], alone) == []


@pytest.mark.parametrize(("mode", "schedule"), PREEMPTED)
def test_a_preempted_request_goes_on_with_its_counts_and_entries(mode: str, schedule: Schedule) -> None:
    """So few pages that requests are preempted in the middle: penalties, masks and log-probabilities as if never."""
    config = PLAIN if mode == "plain" else MODES[mode]
    wanted = [replace(row, logprobs=2, prompt_logprobs=1) for row in option_rows(1.0, 40, ignore_eos=True)]
    picked = [ids[:20] for ids in prompts(len(wanted))]
    # Room for the beginnings of three or four requests and little more.
    pages = (4 if mode == "tree-k3" else 3) * -(-(20 + 2 * config.verify_width) // 4) + 2
    llm = bundle().llm(
        config,
        wrap=WorkerExecutor if schedule == "overlap" else None,
        batch=6,
        context=256,
        page_size=4,
        kv_pages=pages,
        max_prefill_tokens=33,
        schedule=schedule,
    )
    found = llm.generate(picked, wanted)
    assert llm.stats().preemptions > 0
    expected = bundle().llm(PLAIN, batch=len(wanted), context=256).generate(picked, wanted)
    assert differing(found, expected) == []
    for ours, theirs in zip(found, expected, strict=True):
        assert equal_entries(ours.outputs[0].logprobs, theirs.outputs[0].logprobs)
        assert equal_entries(ours.prompt_logprobs, theirs.prompt_logprobs)


@pytest.mark.parametrize("mode", ["plain", *MODES])
def test_tokens_that_the_model_suppresses_are_never_emitted(mode: str) -> None:
    """generation_config's suppress_tokens hold for every request, whatever its options; here they are likely ones."""
    likely = {token for output in plain("greedy")[5:7] for token in output.outputs[0].token_ids[:3]}
    own = replace(bundle(), defaults=replace(bundle().defaults, suppress_token_ids=tuple(likely)))
    rows = option_rows(0.0, 10)
    rows[0] = replace(rows[0], logit_bias={min(likely): 50.0})
    picked = prompts(10)
    found = own.llm(PLAIN if mode == "plain" else MODES[mode], batch=5, context=512).generate(picked, rows)
    assert not any(likely & set(output.outputs[0].token_ids) for output in found)
    for prompt, row, output in list(zip(picked, rows, found, strict=True))[:7:3]:
        ids = output.outputs[0].token_ids
        assert emitted(own, prompt, row, output.seed, len(ids)) == list(ids)


def test_drafts_follow_masks_and_biases() -> None:
    """Of what may be emitted at all little is likely: drafts that ignored the mask would never be accepted."""
    rows = [SamplingParams(temperature=0.0, max_tokens=40, allowed_token_ids=FEW, frequency_penalty=0.3)] * 3
    found = bundle().llm(MODES["chain"], batch=3, context=512).generate(prompts(3), rows)
    assert all(set(output.outputs[0].token_ids) <= set(FEW) for output in found)
    assert accept_length(found) > 1.5


# --------------------------------------------------------------------------------------------- make prove


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", MODES)
def test_prove_options(mode: str, rule: str) -> None:
    rows = option_rows(RULES[rule], 96) * 6
    several = [prompt.ids for prompt in bundle().held_out()[: len(rows) - 4]] + bundle().long_prompts(
        (300, 420, 350, 510)
    )
    started = time.monotonic()
    found = bundle().llm(MODES[mode], batch=16).generate(several, rows)
    expected = bundle().llm(PLAIN, batch=7).generate(several, rows)
    wrong = differing(found, expected)
    figures = {"prompts": len(rows), "differing_prompts": len(wrong), "accept_length": round(accept_length(found), 3)}
    report(f"options-{rule}-{mode}", figures | {"seconds": round(time.monotonic() - started, 1)})
    assert wrong == []
