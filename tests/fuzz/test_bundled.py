"""Random mixes on the bundled pair in float64: overlap, sync and plain decoding one by one give the same.

The drafted nodes of every run are the reference drafter's. 100 mixes in make prove, a few in make test.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from frostline import LLM, RequestOutput, SamplingParams
from frostline.config import Schedule
from frostline.engine.request import Request
from frostline.speculative.worker import WorkerExecutor
from tests.equality.bundled import PLAIN, bundle
from tests.equality.drafter import ReferenceDrafter, Shape, accepted_of
from tests.fuzz.device import Lagging, Tight
from tests.fuzz.mix import Ask, speculation
from tests.fuzz.observer import Observer, Track
from tests.fuzz.oracle import check_counters, drive, same

CONTEXT = 192
WINDOW = 64


@cache
def plain() -> LLM:
    return bundle().llm(PLAIN, batch=1, context=CONTEXT, capture_after=16, prefix_cache=False)


@cache
def reference() -> ReferenceDrafter:
    return ReferenceDrafter(bundle().pair.target)


def asks(rng: random.Random, steps: int) -> list[Ask]:
    """Held-out prompts, cut anywhere, some beginning as another does and some longer than the window."""
    pool = [prompt.ids for prompt in bundle().held_out()[:24]] + bundle().long_prompts((100, 120))
    prompts: list[tuple[int, ...]] = []
    for _ in range(rng.randint(2, 5)):
        tokens = rng.choice(pool)
        if prompts and rng.random() < 0.4:
            tokens = (*prompts[-1][: rng.randint(1, 60)], *tokens)
        prompts.append(tokens[: rng.choice([1, 16, 32, 64, 65, rng.randint(1, 120)])])
    return [
        Ask(prompt=prompt, params=params(rng, steps), tick=rng.choice([0, 0, 3]), abort=abort)
        for prompt in prompts
        for abort in [rng.randrange(10) if rng.random() < 0.1 else None]
    ]


def params(rng: random.Random, steps: int) -> SamplingParams:
    """Gemma's defaults or greedy, options that change logits in one of four."""
    found = SamplingParams(
        temperature=rng.choice([0.0, 1.0]),
        top_k=64,
        top_p=0.95,
        seed=rng.randrange(1000),
        max_tokens=rng.choice([1, 5, 12, 24]),
        stop=rng.choice([(), ("e",), ("\n",)]),
        ignore_eos=rng.random() < 0.7,
        num_steps=rng.choice([None, None, rng.randint(0, steps)]),
        logprobs=rng.choice([None, None, 0, 2]),
        prompt_logprobs=rng.choice([None] * 5 + [1]),
        n=rng.choice([1] * 6 + [2]),
    )
    if rng.random() < 0.75:
        return found
    return replace(
        found,
        frequency_penalty=rng.choice([0.0, 0.8]),
        presence_penalty=rng.choice([0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        min_tokens=min(3, found.max_tokens or 3),
    )


def play(seed: int, schedule: Schedule) -> tuple[list[tuple[Ask, Request]], list[Track]]:
    rng = random.Random(seed)
    config = replace(speculation(rng), draft_position="P")
    picked, page_size = asks(rng, config.num_steps), rng.choice([4, 8, 16])
    margin = 2 * config.verify_width
    longest = max(len(ask.prompt) + (ask.params.max_tokens or 0) for ask in picked)
    full = -(-(longest + margin) // page_size)
    sliding = min(full, (WINDOW + margin - 2) // page_size + 2)
    wraps = {"sync": lambda device: device, "overlap": (Lagging, WorkerExecutor)[seed % 2]}
    pages = {"sliding": sliding + rng.choice([0, 2, sliding]), "full": full + rng.choice([0, 2, full])}
    llm = bundle().llm(
        config,
        wrap=lambda device: wraps[schedule](Tight(device, pages)),
        batch=rng.randint(2, 4),
        context=CONTEXT,
        page_size=page_size,
        kv_pages=pages["full"],
        sliding_kv_pages=pages["sliding"],
        max_prefill_tokens=rng.choice([16, 50, 512]),
        schedule=schedule,
        capture_after=None,
    )
    engine = llm._engine
    observer = Observer(engine.loop._scheduler, page_size)
    asked = [(request, ask) for ask in picked for request in engine.samples(ask.prompt, ask.params)]
    drive(engine, asked)
    for request, _ in asked:
        check_counters(request, [track for track in observer.tracks if track.request is request])
    return [(ask, request) for request, ask in asked], observer.tracks


def mistakes(tracks: Sequence[Track]) -> list[str]:
    """What was drafted or accepted otherwise than the reference drafter would."""
    wrong = []
    for track in tracks:
        known = reference().know(track.tokens)
        for run in track.runs:
            plan, place = run.plan, len(run.tokens) - 1
            shape = Shape(plan.num_steps, plan.topk, plan.verify_width, plan.draft_offset, plan.coupled)
            nodes = reference().draft(known, place, shape, track.init)
            found = run.result.nodes
            accepted = accepted_of(nodes, run.result.tokens, min(track.init.depth, plan.num_steps))
            if found is None or (found.tokens, found.parents) != nodes or accepted != len(run.result.tokens) - 1:
                wrong.append(f"{track.request.request_id} at {place}: {found}, not {nodes}")
    return wrong


def check(seed: int) -> None:
    outputs: dict[Schedule, list[RequestOutput]] = {}
    for schedule in ("sync", "overlap"):
        played, tracks = play(seed, schedule)
        assert mistakes(tracks) == []
        outputs[schedule] = [request.output() for _, request in played]
    picked = [ask for ask, _ in played]
    for number, ask in enumerate(picked):
        samples = plain()._engine.samples(ask.prompt, replace(ask.params, num_steps=None))
        index = sum(other is ask for other in picked[:number])
        samples[index].parent = None
        plain()._engine.run([samples[index]], on_finish=lambda request: None)
        for found in outputs.values():
            same(ask, found[number], samples[index].output())


@pytest.mark.parametrize("seed", range(5))
def test_mixes_on_the_bundled_pair(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_prove_mixes_on_the_bundled_pair(block: int) -> None:
    for seed in range(1000 + 10 * block, 1010 + 10 * block):
        check(seed)
