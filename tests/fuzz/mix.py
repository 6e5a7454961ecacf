"""Random cases from a seed: what the engine and its device are like, who asks for what, when, and who gives up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from frostline.config import DepthTable, SpeculativeConfig, tree_capacity
from frostline.types import SamplingParams
from tests.fuzz.reference import Rule, next_token
from tests.fuzz.tables import POISON, WORDS

CONTEXT = 72
STOPS = ("ab", "bc", "b d", "ea", "ccb", "dcb e")
SEEDS = 64


@dataclass(frozen=True, kw_only=True)
class Machine:
    """window `W`; pages: of each group, what the engine may give out; narrow: the fake assistant's.

    cache: prefixes are shared.
    recorded: every iteration is recorded and replayed (runner.graphs), on a device side that all such cases share.
    ruled: all its requests have penalties and biases. suppressed: tokens that nobody may emit.
    """

    window: int
    page_size: int
    speculative: SpeculativeConfig
    rows: int
    budget: int
    narrow: bool
    cache: bool = True
    recorded: bool = False
    ruled: bool = False
    suppressed: tuple[int, ...] = ()
    sliding_pages: int = 0
    full_pages: int = 0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. tick: when it comes. abort: ticks after which it is aborted, if it is."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tick: int
    abort: int | None


@dataclass(frozen=True, kw_only=True)
class Mix:
    seed: int
    machine: Machine
    asks: tuple[Ask, ...]


def mix(seed: int, *, recorded: bool | None = None) -> Mix:
    """The case of a seed. recorded: None leaves it to the seed; one case in eight is."""
    rng = random.Random(seed)
    by_chance = rng.random() < 0.125
    recorded = by_chance if recorded is None else recorded
    crowded = rng.random() < 0.2
    machine = _recorded_machine(rng) if recorded else _machine(rng)
    if crowded and not recorded:
        machine = replace(machine, speculative=speculation(rng, most=2), rows=rng.randint(3, 5))
    count = rng.randint(3, 4) if crowded else rng.choice([1, 2, 2, 3, 3, 4, 5])
    asks = [_ask(rng, machine, prompt, crowded=crowded) for prompt in _prompts(rng, machine.page_size, count)]
    if len(asks) > 1 and not crowded and rng.random() < 0.3:
        asks[-1] = _next_turn(rng, machine, asks[0], asks[-1])
    return Mix(seed=seed, machine=_with_pages(rng, machine, asks), asks=tuple(asks))


def _ask(rng: random.Random, machine: Machine, prompt: tuple[int, ...], *, crowded: bool) -> Ask:
    """crowded: short prompts that all grow long, so that those who were admitted together do not fit for long."""
    params = _params(rng, machine)
    params = _few(rng, params, ruled=machine.ruled) if machine.recorded else _rules(rng, params)
    if crowded:
        prompt = prompt[-8:]
        most = rng.randint(9, 15)
        params = replace(
            params,
            ignore_eos=True,
            stop=(),
            stop_token_ids=(),
            max_tokens=most,
            min_tokens=min(most, params.min_tokens),
        )
    return Ask(
        prompt=prompt,
        params=params,
        tick=rng.choice([0, 0, rng.randrange(8), rng.randrange(16)]),
        abort=rng.randrange(12) if rng.random() < 0.15 else None,
    )


def _next_turn(rng: random.Random, machine: Machine, before: Ask, ask: Ask) -> Ask:
    """The same request with a prompt that goes on from another's output, or from another way that could have gone."""
    tokens, params = before.prompt, before.params
    rule = Rule(params=params, seed=params.seed or 0, prompt_len=len(tokens), suppressed=machine.suppressed)
    most = params.max_tokens or 1
    for _ in range(rng.choice([most, rng.randint(1, most)])):
        tokens = (*tokens, next_token(tokens, rule))
    salt = replace(ask.params, cache_salt=params.cache_salt)
    return replace(ask, prompt=(*tokens, *ask.prompt[:3])[:52], params=salt, tick=before.tick + rng.randint(2, 14))


def _with_pages(rng: random.Random, machine: Machine, asks: Sequence[Ask]) -> Machine:
    """Often hardly more pages than the largest request needs alone, so that others are preempted."""
    margin, page_size = 2 * machine.speculative.verify_width, machine.page_size
    longest = max(len(ask.prompt) + (ask.params.max_tokens or CONTEXT) for ask in asks)
    full = -(-(min(longest, CONTEXT) + margin) // page_size)
    sliding = min(full, (machine.window + margin - 2) // page_size + 2)
    return replace(
        machine,
        full_pages=max(2, full + rng.choice([0, 0, 1, 2, full, 3 * full])),
        sliding_pages=max(2, sliding + rng.choice([0, 1, 2, sliding, 3 * sliding])),
    )


def _rules(rng: random.Random, params: SamplingParams) -> SamplingParams:
    """Some of the options that change logits, in three requests of ten."""
    if rng.random() < 0.7:
        return params
    chosen: dict[str, Any] = {}
    if rng.random() < 0.5:
        chosen["frequency_penalty"] = rng.choice([-0.5, 0.7, 2.0])
        chosen["presence_penalty"] = rng.choice([0.0, 1.0])
        chosen["repetition_penalty"] = rng.choice([1.0, 0.8, 1.3])
    if rng.random() < 0.4:
        chosen["logit_bias"] = {rng.randrange(WORDS): rng.choice([-100.0, -1.5, 2.5]) for _ in range(3)}
    if rng.random() < 0.4:
        chosen["min_tokens"] = rng.randint(1, params.max_tokens or 1)
    if rng.random() < 0.3:
        chosen["allowed_token_ids"] = tuple(rng.sample(range(10, WORDS), rng.randint(1, 9)))
        chosen["stop_token_ids"] = ()
    return replace(params, **chosen)


def speculation(rng: random.Random, *, most: int = 6) -> SpeculativeConfig:
    steps = min(most, rng.choice([0, 1, 2, 2, 3, 3, 4, 5, 6]))
    topk = rng.choice([1, 1, 2, 3]) if steps else 1
    width = None
    if topk > 1:
        width = rng.randint(steps + 1, min(tree_capacity(steps, topk), 12))
    return SpeculativeConfig(
        num_steps=steps,
        topk=topk,
        num_draft_tokens=width,
        draft_position=rng.choice(["P", "P-1", "auto"]),  # type: ignore[arg-type]
        draft_sampling="coupled" if rng.random() < 0.85 else "argmax",
        depth_table=_depth_table(rng, steps) if rng.random() < 0.2 else None,
    )


def _depth_table(rng: random.Random, steps: int) -> DepthTable:
    entries = [(1, rng.randint(0, steps))]
    while len(entries) < 3 and rng.random() < 0.7:
        entries.append((entries[-1][0] + rng.randint(1, 2), rng.randint(0, steps)))
    return DepthTable(entries=tuple(entries))


_RECORDED = tuple(
    Machine(
        window=window,
        page_size=page_size,
        speculative=speculative,
        rows=3,
        budget=0,
        narrow=narrow,
        recorded=True,
        ruled=ruled,
    )
    for window, page_size, narrow, ruled, speculative in (
        (7, 4, True, False, SpeculativeConfig(num_steps=4, draft_position="P")),
        (6, 3, False, False, SpeculativeConfig(num_steps=3, topk=2, num_draft_tokens=7, draft_position="P")),
        (5, 2, True, True, SpeculativeConfig(num_steps=2, topk=2, num_draft_tokens=5, draft_position="P")),
    )
)


def _machine(rng: random.Random) -> Machine:
    speculative, page_size = speculation(rng), rng.randint(1, 5)
    return Machine(
        window=rng.randint(2, 12),
        page_size=page_size,
        speculative=speculative,
        rows=rng.randint(1, 5),
        budget=rng.choice([2, 5, 8, 16, 16, 64, 64]),
        narrow=rng.random() < 0.3,
        cache=rng.random() < 0.85,
        suppressed=(2, 9) if rng.random() < 0.25 else (),
    )


def _prompts(rng: random.Random, page_size: int, count: int) -> list[tuple[int, ...]]:
    """Lengths around pages and windows, beginnings shared, few with a token that makes NaN."""
    prompts: list[tuple[int, ...]] = []
    bricks = [tuple(rng.randrange(WORDS) for _ in range(page_size)) for _ in range(2)]
    for _ in range(count):
        if rng.random() < 0.15:
            # Equal pages after unequal ones: only the whole beginning tells them apart.
            prompts.append(tuple(token for _ in range(rng.randint(2, 5)) for token in rng.choice(bricks)))
            continue
        length = rng.choice([1, rng.randint(1, 6), page_size * rng.randint(1, 5), rng.randint(1, 28)])
        head: tuple[int, ...] = ()
        if prompts and rng.random() < 0.6:
            other = rng.choice(prompts)
            head = other[: rng.choice([len(other), rng.randint(1, len(other))])]
        tail = tuple(rng.randrange(WORDS) for _ in range(length if not head else rng.choice([0, 1, length])))
        tokens = list(head + tail)
        if rng.random() < 0.03:
            tokens[rng.randrange(len(tokens))] = POISON
        prompts.append(tuple(tokens[:48]))
    return prompts


def _recorded_machine(rng: random.Random) -> Machine:
    """One of two, and only pages and budget vary: a recording takes longer than a case."""
    return replace(rng.choice(_RECORDED), budget=rng.choice([5, 16, 64]))


def _few(rng: random.Random, params: SamplingParams, *, ruled: bool) -> SamplingParams:
    """The same with one set of filters and no own depth: few shapes of batches."""
    same = replace(params, top_k=8, top_p=0.9, min_p=0.02, num_steps=None, logprobs=2 if ruled else None)
    if not ruled:
        return same
    return replace(
        same, frequency_penalty=rng.choice([-0.5, 1.0]), repetition_penalty=1.2, logit_bias={rng.randrange(WORDS): 1.5}
    )


def _params(rng: random.Random, machine: Machine) -> SamplingParams:
    steps = machine.speculative.num_steps
    sampled = rng.random() < 0.5
    return SamplingParams(
        temperature=rng.choice([0.5, 1.0, 1.5]) if sampled else 0.0,
        top_k=rng.choice([-1, 0, 3, 8]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        seed=rng.randrange(SEEDS),
        max_tokens=rng.choice([1, 2, 3, 5, 8, 12]),
        stop=rng.sample(STOPS, rng.choice([0, 0, 0, 1, 2])),
        stop_token_ids=tuple(rng.sample(range(WORDS), rng.choice([0, 0, 1]))),
        ignore_eos=rng.random() < 0.5,
        include_stop_str_in_output=rng.random() < 0.3,
        skip_special_tokens=rng.random() < 0.8,
        num_steps=rng.choice([None, None, None, 0, rng.randint(0, steps)]),
        n=rng.choice([1] * 9 + [2, 3]),
        cache_salt=rng.choice([None] * 6 + ["a", "b"]),
        logprobs=rng.choice([None] * 6 + [0, 1, 3]),
        prompt_logprobs=rng.choice([None] * 12 + [0, 2]),
    )
