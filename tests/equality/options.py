"""Requests with each option that changes logits, and what they must emit: token by token, from a dense forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from frostline import SamplingParams
from frostline.engine.rules import logit_rules
from frostline.model.attention import CausalContext
from frostline.runner.rules import LogitRules
from frostline.types import Logprobs
from tests.equality.bundled import Bundle
from tests.sampling.reference import keep, noise, processed

# Common word pieces of the bundled tokenizer, and three ids that its texts never hold.
FEW = tuple(range(300, 460))


def option_rows(temperature: float, tokens: int, **common: Any) -> list[SamplingParams]:
    """Neighbours differ in what they use; several use all of it. The sixth uses nothing."""
    base: dict[str, Any] = {"temperature": temperature, "max_tokens": tokens} | common
    options: list[dict[str, Any]] = [
        {"frequency_penalty": 0.9},
        {"presence_penalty": 1.4, "repetition_penalty": 1.25},
        {"logit_bias": {310: 7.0, 311: 6.5, 106: -100.0}},
        {"min_tokens": tokens - 3},
        {"allowed_token_ids": FEW, "frequency_penalty": 0.5},
        {},
        {"frequency_penalty": -0.6, "logit_bias": {340: 3.0}, "min_tokens": 4, "top_k": 50, "top_p": 0.9},
        {"repetition_penalty": 0.85, "stop": ("e",), "min_tokens": tokens // 2},
        {
            "repetition_penalty": 1.6,
            "presence_penalty": -0.7,
            "min_p": 0.02,
            "stop_token_ids": (10, 30),
            "min_tokens": 9,
        },
        {"allowed_token_ids": (*FEW[:40], 106), "min_tokens": 3, "logit_bias": {106: 4.0}},
    ]
    return [SamplingParams(**(base | {"seed": 40 + number} | own)) for number, own in enumerate(options)]


def equal_entries(ours: Sequence[Logprobs | None] | None, theirs: Sequence[Logprobs | None] | None) -> bool:
    """The same tokens in the same order at every position, log-probabilities within 1e-9, equal ranks."""
    if ours is None or theirs is None:
        return ours is theirs
    return len(ours) == len(theirs) and all(map(_equal_entry, ours, theirs))


def _equal_entry(one: Logprobs | None, other: Logprobs | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = zip(one.items(), other.items(), strict=False)
    return len(one) == len(other) and all(
        token == same and found.rank == expected.rank and abs(found.logprob - expected.logprob) < 1e-9
        for (token, found), (same, expected) in pairs
    )


def emitted(own: Bundle, prompt: Sequence[int], params: SamplingParams, seed: int, count: int) -> list[int]:
    """The request's first `count` tokens, whatever ends it: each from a dense forward over all tokens before it."""
    rules = logit_rules(
        params,
        prompt,
        eos_token_ids=own.defaults.eos_token_ids,
        suppress_token_ids=own.defaults.suppress_token_ids,
        vocab_size=own.pair.target.spec.vocab_size,
    )
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(_next_token(own, tokens, len(prompt), rules or LogitRules(), params, seed))
    return tokens[len(prompt) :]


def _next_token(
    own: Bundle, tokens: list[int], prompt_len: int, rules: LogitRules, params: SamplingParams, seed: int
) -> int:
    target = own.pair.target
    with torch.inference_mode():
        hidden = target(torch.tensor([tokens]), CausalContext(target.spec, target.rotary, torch.arange(len(tokens))))
        logits = target.logits(hidden[0, -1]).tolist()
    scores = processed(logits, rules, tokens[prompt_len:], len(tokens), range(len(logits)))
    if params.temperature > 0:
        tempered = [value / params.temperature for value in scores]
        kept = keep(tempered, params.top_k, params.top_p, params.min_p)
        scores = [
            value + noise(seed, len(tokens), token) if token in kept and value > -math.inf else -math.inf
            for token, value in enumerate(tempered)
        ]
    return max(range(len(scores)), key=lambda token: (scores[token], -token))
