"""Few pages on the bundled pair: preemption, eviction and the prefix cache change no token, text or log-probability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from frostline import LLM, RequestOutput, SamplingParams, SpeculativeConfig
from frostline.config import Schedule
from frostline.engine.engine import sample_seed
from frostline.speculative.step import Executor
from frostline.speculative.worker import WorkerExecutor
from tests.equality.bundled import PLAIN, bundle, differing, sampled

MODES = {
    "plain": PLAIN,
    "chain": SpeculativeConfig(num_steps=4),
    "tree": SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16),
}
WRAPS: dict[Schedule, Callable[[Executor], Executor]] = {"sync": lambda device: device, "overlap": WorkerExecutor}


def prompts() -> list[list[int]]:
    """Some begin alike, by whole pages of 8 and by less."""
    ids = [list(prompt.ids) for prompt in bundle().held_out()[:6]]
    return [*ids, ids[0] + ids[1], ids[0][:21] + ids[2], ids[3] + ids[4], ids[3]]


def params(number: int) -> SamplingParams:
    penalised = {"frequency_penalty": 0.4, "repetition_penalty": 1.1} if number % 3 == 0 else {}
    own = sampled(number, max_tokens=24 + 3 * number, logprobs=2 if number % 4 == 1 else None, **penalised)
    return own if number % 2 else replace(own, temperature=0.0)


@cache
def one_by_one() -> list[RequestOutput]:
    llm = bundle().llm(PLAIN, batch=1, context=256)
    return [llm.generate([prompt], params(number))[0] for number, prompt in enumerate(prompts())]


def pressed(mode: str, schedule: Schedule, **options: Any) -> LLM:
    return bundle().llm(
        MODES[mode],
        wrap=WRAPS[schedule],
        batch=6,
        context=256,
        page_size=8,
        kv_pages=34,
        max_prefill_tokens=64,
        schedule=schedule,
        **options,
    )


def logprobs(output: RequestOutput) -> list[float]:
    return [
        entry[token].logprob
        for completion in output.outputs
        for token, entry in zip(completion.token_ids, completion.logprobs or (), strict=False)
    ]


@pytest.mark.parametrize(
    ("mode", "schedule", "prefix_cache", "capture_after"),
    [
        ("plain", "sync", True, None),
        ("chain", "overlap", True, 2),
        ("tree", "overlap", True, None),
        ("tree", "sync", False, None),
    ],
)
def test_pressure_changes_nothing(mode: str, schedule: Schedule, prefix_cache: bool, capture_after: int | None) -> None:
    llm = pressed(mode, schedule, prefix_cache=prefix_cache, capture_after=capture_after)
    asked = [params(number) for number in range(len(prompts()))]
    found, expected = llm.generate(prompts(), asked), one_by_one()
    assert differing(found, expected) == []
    for ours, theirs in zip(found, expected, strict=True):
        assert logprobs(ours) == pytest.approx(logprobs(theirs), abs=1e-9)
    stats = llm.stats()
    assert stats.preemptions > 0
    assert (stats.cached_prompt_tokens > 0) == prefix_cache
    # Once more, now with all of it to be found.
    assert differing(llm.generate(prompts(), asked), expected) == []


@pytest.mark.parametrize(("mode", "schedule"), [("tree", "sync"), ("chain", "overlap")])
def test_samples_of_a_prompt_are_what_they_would_be_alone(mode: str, schedule: Schedule) -> None:
    """Their prompt is prefilled once, its partial page copied; pages are so few that some samples are preempted."""
    llm = pressed(mode, schedule, prefix_cache=False)
    ids = prompts()[:3]
    asked = [replace(sampled(number, max_tokens=70, repetition_penalty=1.1), n=3, logprobs=1) for number in range(3)]
    found = llm.generate(ids, asked)
    stats = llm.stats()
    assert stats.preemptions > 0 and stats.cached_prompt_tokens > 0
    plain = bundle().llm(PLAIN, batch=1, context=256)
    for number, output in enumerate(found):
        assert len(output.outputs) == 3
        for index, completion in enumerate(output.outputs):
            alone = replace(asked[number], n=1, seed=sample_seed(number, index))
            expected = plain.generate([ids[number]], alone)[0].outputs[0]
            assert (completion.token_ids, completion.text) == (expected.token_ids, expected.text)
            assert completion.cumulative_logprob == pytest.approx(expected.cumulative_logprob, abs=1e-9)
