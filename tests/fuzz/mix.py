"""Random cases from a seed: what the engine and its device are like, who asks for what, when, and who gives up."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from frostline.config import SpeculativeConfig, tree_capacity
from frostline.types import SamplingParams
from tests.fuzz.tables import POISON, WORDS

CONTEXT = 72
STOPS = ("ab", "bc", "b d", "ea", "ccb", "dcb e")
SEEDS = 64


@dataclass(frozen=True, kw_only=True)
class Machine:
    """window `W`; pages: of each group, what the engine may give out; offset and narrow: the fake assistant's.

    recorded: every iteration is recorded and replayed (runner.graphs), on a device side that all such cases share.
    """

    window: int
    page_size: int
    speculative: SpeculativeConfig
    rows: int
    sliding_pages: int
    full_pages: int
    budget: int
    offset: int
    narrow: bool
    recorded: bool = False


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
    machine = _recorded_machine(rng) if recorded else _machine(rng)
    prompts = _prompts(rng, machine.page_size, rng.choice([1, 2, 3, 4, 4, 5, 6]))
    asks = tuple(
        Ask(
            prompt=prompt,
            params=_few(_params(rng, machine)) if recorded else _params(rng, machine),
            tick=rng.choice([0, 0, rng.randrange(8)]),
            abort=rng.randrange(8) if rng.random() < 0.15 else None,
        )
        for prompt in prompts
    )
    return Mix(seed=seed, machine=machine, asks=asks)


def speculation(rng: random.Random) -> SpeculativeConfig:
    steps = rng.choice([0, 1, 2, 2, 3, 3, 4, 5, 6])
    topk = rng.choice([1, 1, 2, 3]) if steps else 1
    width = None
    if topk > 1:
        width = rng.randint(steps + 1, min(tree_capacity(steps, topk), 12))
    return SpeculativeConfig(
        num_steps=steps,
        topk=topk,
        num_draft_tokens=width,
        draft_position=rng.choice(["P", "P-1"]),  # type: ignore[arg-type]
        draft_sampling="coupled" if rng.random() < 0.85 else "argmax",
    )


def _pages(speculative: SpeculativeConfig, page_size: int) -> int:
    """Pages of the longest request."""
    return -(-(CONTEXT + 2 * speculative.verify_width) // page_size)


_RECORDED = tuple(
    Machine(
        window=window,
        page_size=page_size,
        speculative=speculative,
        rows=3,
        sliding_pages=0,
        full_pages=0,
        budget=0,
        offset=0,
        narrow=narrow,
        recorded=True,
    )
    for window, page_size, narrow, speculative in (
        (7, 4, True, SpeculativeConfig(num_steps=4, draft_position="P")),
        (6, 3, False, SpeculativeConfig(num_steps=3, topk=2, num_draft_tokens=7, draft_position="P")),
    )
)


def _machine(rng: random.Random) -> Machine:
    speculative, page_size = speculation(rng), rng.randint(2, 5)
    one = _pages(speculative, page_size)
    return Machine(
        window=rng.randint(4, 12),
        page_size=page_size,
        speculative=speculative,
        rows=rng.randint(1, 5),
        sliding_pages=one + rng.randint(0, 2 * one),
        full_pages=one + rng.randint(0, 2 * one),
        budget=rng.choice([1, 3, 7, 16, 64]),
        offset=0 if speculative.draft_position == "P" else -1,
        narrow=rng.random() < 0.3,
    )


def _prompts(rng: random.Random, page_size: int, count: int) -> list[tuple[int, ...]]:
    """Lengths around pages and windows, some prompts beginning as another does, few with a token that makes NaN."""
    prompts: list[tuple[int, ...]] = []
    for _ in range(count):
        length = rng.choice([1, rng.randint(1, 6), page_size * rng.randint(1, 5), rng.randint(1, 28)])
        head: tuple[int, ...] = ()
        if prompts and rng.random() < 0.5:
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
    base = rng.choice(_RECORDED)
    one = _pages(base.speculative, base.page_size)
    return replace(
        base,
        sliding_pages=one + rng.randint(0, one),
        full_pages=one + rng.randint(0, one),
        budget=rng.choice([3, 16, 64]),
    )


def _few(params: SamplingParams) -> SamplingParams:
    """The same with one set of filters and no own depth: few shapes of batches."""
    return replace(params, top_k=8, top_p=0.9, min_p=0.02, num_steps=None)


def _params(rng: random.Random, machine: Machine) -> SamplingParams:
    steps = machine.speculative.num_steps
    sampled = rng.random() < 0.5
    return SamplingParams(
        temperature=rng.choice([0.5, 1.0, 1.5]) if sampled else 0.0,
        top_k=rng.choice([-1, 0, 3, 8]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        seed=rng.randrange(SEEDS),
        max_tokens=rng.choice([1, 2, 3, 6, 10, 16, 24]),
        stop=rng.sample(STOPS, rng.choice([0, 0, 0, 1, 2])),
        stop_token_ids=tuple(rng.sample(range(WORDS), rng.choice([0, 0, 1]))),
        ignore_eos=rng.random() < 0.5,
        include_stop_str_in_output=rng.random() < 0.3,
        skip_special_tokens=rng.random() < 0.8,
        num_steps=rng.choice([None, None, None, 0, rng.randint(0, steps)]),
    )
