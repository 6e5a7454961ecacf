"""Random request mixes on the fake device side give what one-by-one plain decoding gives, and leave nothing behind.

Pools are often so small that a few long requests do not fit together, and windows so short that most pages are evicted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.config import Schedule
from frostline.engine.engine import Engine
from frostline.engine.request import Request
from frostline.speculative.step import Executor
from frostline.types import CompletionOutput, SamplingParams
from tests.engine.fake_executor import FakeExecutor, hashed
from tests.engine.harness import engine_on
from tests.engine.plain import plain
from tests.text.byte_level import EOS, byte_ids, byte_level

# Few tokens, so that stop strings come up by chance; EOS and a special one among them, and bytes of split characters.
CHOICES = (*byte_ids("aabbcc 한"), *byte_level().encode("the ", add_bos=False), EOS, 3)
# No answer has it, and whoever has it in a prompt fails.
POISON = 7
STOPS = ("ab", "bca", "한", "the a", "c c", "b\ufffd")
MAX_CONTEXT = 48


@dataclass(kw_only=True)
class Mix:
    """A case: the device's sizes, and per request when it comes and when, if ever, it is aborted.

    crowded: short prompts with long answers in few pages, which force preemption. failing: how likely a request is to
    have NaN in its prompt, and again in its answer. sharing: how likely a prompt begins as another one does. What came
    of it is left in `preemptions`, `late_runs`, `evicted`, `cached` and `copied`.
    """

    seed: int
    rng: random.Random = field(init=False)
    crowded: bool = field(init=False)
    failing: float = field(init=False)
    sharing: float = field(init=False)
    preemptions: int = 0
    late_runs: int = 0
    evicted: int = 0
    cached: int = 0
    copied: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.crowded = self.rng.random() < 0.5
        self.failing = self.rng.choice([0, 0, 0.15])
        self.sharing = self.rng.choice([0, 0.3, 0.8])

    def params(self, steps: int, number: int) -> SamplingParams:
        """number: of the request in its case; its seed tells it from the others."""
        rng = self.rng
        return SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            top_k=rng.choice([-1, 0, 5]),
            seed=100 * rng.randrange(100) + number,
            max_tokens=rng.choice([20, 30, 100, None] if self.crowded else [1, 2, 3, 9, 20, 100, None]),
            stop=rng.sample(STOPS, rng.choice([0, 0, 0, 0, 1] if self.crowded else [0, 0, 1, 2])),
            stop_token_ids=tuple(rng.sample(CHOICES, rng.choice([0, 0, 0, 1]))),
            ignore_eos=rng.random() < (0.9 if self.crowded else 0.3),
            include_stop_str_in_output=rng.random() < 0.3,
            skip_special_tokens=rng.random() < 0.8,
            num_steps=rng.choice([None, None, 0, rng.randint(0, steps)]),
            cache_salt=rng.choice([None, None, None, "salt"]),
        )

    def prompt(self, others: Sequence[Sequence[int]]) -> list[int]:
        most = 9 if self.crowded else MAX_CONTEXT - 1
        prompt = [self.rng.choice(CHOICES) for _ in range(self.rng.randint(1, most))]
        if others and self.rng.random() < self.sharing:
            other = self.rng.choice(others)
            prompt = [*other[: self.rng.randint(1, len(other))], *prompt][: MAX_CONTEXT - 1]
        if self.rng.random() < self.failing:
            prompt[self.rng.randrange(len(prompt))] = POISON
        return prompt

    def samples(self) -> int:
        return self.rng.choice([1, 1, 1, 2, 4])

    def device(self, steps: int, width: int) -> FakeExecutor:
        rng = self.rng
        page_size = rng.choice([1, 3, 4, 16])
        one = -(-(MAX_CONTEXT + 2 * width) // page_size)
        window = rng.choice([1, rng.randint(2, 12), rng.randint(8, 30), 99])
        least = {"sliding": min(one, (window + 2 * width - 2) // page_size + 2), "full": one}
        pages = {group: 1 + few + rng.randint(0, 2 if self.crowded else 2 * one) for group, few in least.items()}
        runs = random.Random(self.seed + 1)
        return FakeExecutor(
            hashed(CHOICES),
            accept=lambda most: runs.randint(0, most),
            nan_token=POISON,
            num_rows=rng.randint(4 if self.crowded else 2, 7),
            page_size=page_size,
            num_pages=pages,
            window=window,
            max_context=MAX_CONTEXT,
            verify_width=width,
        )


def play(
    mix: Mix, *, schedule: Schedule = "sync", wrap: Callable[[FakeExecutor], Executor] = lambda device: device
) -> dict[str, CompletionOutput]:
    """Runs the case and checks everything; what the requests got that were not aborted."""
    rng = mix.rng
    steps, topk = rng.randint(0, 6), rng.choice([1, 1, 2])
    topk = topk if steps else 1
    width = steps + 1 if topk == 1 else min(steps + 3, 1 + 2 + (steps - 1) * 4)
    budget = rng.choice([1, 5, 16, 64])
    device = mix.device(steps, width)
    engine = engine_on(
        wrap(device),
        steps=steps,
        topk=topk,
        width=width,
        budget=budget,
        schedule=schedule,
        prefix_cache=rng.random() < 0.8,
    )
    prompts: list[list[int]] = []
    for _ in range(rng.randint(4 if mix.crowded else 1, 9)):
        prompts.append(mix.prompt(prompts))
    requests = [
        request
        for number, prompt in enumerate(prompts)
        for request in engine.samples(prompt, replace(mix.params(steps, number), n=mix.samples()))
    ]
    device.nan = frozenset(
        (request.seed, request.prompt_len + at)
        for request in requests
        if rng.random() < mix.failing
        for at in range(rng.randint(0, 20), MAX_CONTEXT)
    )
    aborted = {request.request_id: rng.randrange(12) for request in requests if rng.random() < 0.2}
    arrival: dict[str, int] = {}
    for request in requests:
        # Samples come with their first one.
        when = rng.choice([0, 0, rng.randrange(12)])
        arrival[request.request_id] = when if request.parent is None else arrival[request.parent.request_id]
    drive(engine, requests, arrival, aborted)
    for request in requests:
        check(request, was_aborted=request.request_id in aborted, nan=device.nan)
    for step in device.steps:
        assert sum(len(chunk.tokens) for chunk in step.prefill) <= budget
    order = list(dict.fromkeys(init.seed for step in device.steps for init in step.inits))
    came = sorted((request for request in requests if request.seed in order), key=lambda r: arrival[r.request_id])
    assert order == [request.seed for request in came], "nobody overtakes the head of the queue"
    outputs = {request.request_id: request.output() for request in requests}
    reasons = {request_id: output.outputs[0].finish_reason for request_id, output in outputs.items()}
    returned = sum(output.stats.iterations for output in outputs.values())
    failed = sum(reasons[request.request_id] == "error" and bool(request.output_ids) for request in requests)
    assert returned + failed + engine.stats().late_runs == sum(len(step.rows) for step in device.steps)
    mix.preemptions, mix.late_runs = engine.stats().preemptions, engine.stats().late_runs
    mix.copied = sum(len(step.copies) for step in device.steps)
    mix.cached = engine.stats().cached_prompt_tokens
    mix.evicted = sum(write.pages.count(0) for step in device.steps for write in step.tables)
    return {key: output.outputs[0] for key, output in outputs.items() if reasons[key] not in ("abort", "error")}


def drive(engine: Engine, requests: list[Request], arrival: dict[str, int], aborted: dict[str, int]) -> None:
    waiting, tick, order = list(requests), 0, list[str]()
    while waiting or not engine.loop.is_idle:
        for request in [r for r in waiting if arrival[r.request_id] <= tick]:
            engine.loop.add(request)
            waiting.remove(request)
            order.append(request.request_id)
        for request_id, when in aborted.items():
            if when == tick:
                engine.loop.abort(request_id)
        for request in engine.loop.tick():
            assert request.is_finished and request.row == 0 and request.stay is None
        engine.loop.check()
        came = [request.request_id for request in engine.loop._scheduler.unfinished()]
        assert came == [request_id for request_id in order if request_id in came], "not in order of arrival"
        tick += 1
        assert tick < 2000, "no progress"


def check(request: Request, *, was_aborted: bool, nan: frozenset[tuple[int, int]]) -> None:
    output = request.output()
    (got,) = output.outputs
    expected = plain(
        request.prompt_ids,
        request.params,
        seed=request.seed,
        next_token=hashed(CHOICES),
        eos=(EOS,),
        max_context=MAX_CONTEXT,
        tokenizer=byte_level(),
    )
    if was_aborted and got.finish_reason == "abort":
        assert got.token_ids == expected.token_ids[: len(got.token_ids)]
        return
    if got.finish_reason == "error":
        failed = POISON in request.prompt_ids or any(seed == request.seed for seed, _ in nan)
        assert failed and got.token_ids == expected.token_ids[: len(got.token_ids)]
        assert not any((request.seed, request.prompt_len + at) in nan for at in range(len(got.token_ids)))
        return
    assert POISON not in request.prompt_ids
    assert got == expected
    stats = output.stats
    assert len(got.token_ids) == 1 + sum(stats.run_lengths)
    short = stats.iterations + sum(stats.accepted_per_depth) - sum(stats.run_lengths)
    assert short in (0, 1) and len(stats.drafted_per_depth) <= request.depth


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_random_mixes_equal_plain_decoding(seed: int) -> None:
    play(Mix(seed=seed))


@pytest.mark.parametrize("seed", range(100))
def test_fixed_mixes_equal_plain_decoding(seed: int) -> None:
    play(Mix(seed=seed))


@pytest.mark.slow
def test_many_mixes_equal_plain_decoding() -> None:
    for seed in range(1000, 4000):
        play(Mix(seed=seed))
