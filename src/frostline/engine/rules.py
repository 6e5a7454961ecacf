"""From a request's options to the rules that the device applies to its logits.

Knows options, the model's end-of-text and suppressed ids, and lengths; nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from frostline.errors import RequestError
from frostline.runner.rules import NEVER, LogitRules
from frostline.types import SamplingParams


def logit_rules(
    params: SamplingParams,
    prompt_ids: Sequence[int],
    *,
    eos_token_ids: Collection[int],
    suppress_token_ids: Collection[int],
    vocab_size: int | None,
) -> LogitRules | None:
    """The rules of a request that has no output yet; None when its options leave logits as they are.

    min_tokens holds EOS back even where ignore_eos is set, as in vLLM.
    Raises RequestError when the options leave no token that could be emitted.
    """
    waiting: set[int] = set()
    if params.min_tokens:
        waiting = {*eos_token_ids, *params.stop_token_ids}.difference(suppress_token_ids)
    _check_some_token_is_left(params, waiting.union(suppress_token_ids), vocab_size)
    first_end = len(prompt_ids) + params.min_tokens
    earliest = [(token, NEVER) for token in suppress_token_ids] + [(token, first_end) for token in waiting]
    allowed = params.allowed_token_ids
    rules = LogitRules(
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        repetition=params.repetition_penalty,
        prompt_ids=tuple(prompt_ids) if params.is_penalised else (),
        bias=params.bias_pairs,
        earliest=tuple(sorted(earliest)),
        allowed=None if allowed is None else tuple(sorted(set(allowed))),
    )
    return rules if rules.features.any else None


def resumed(rules: LogitRules | None, output_ids: Sequence[int]) -> LogitRules | None:
    """The rules of a request that is given a row when it has these tokens already."""
    if rules is None or not rules.has_penalties or not output_ids:
        return rules
    return replace(rules, output_ids=tuple(output_ids))


def _check_some_token_is_left(params: SamplingParams, held_back: Collection[int], vocab_size: int | None) -> None:
    if params.allowed_token_ids is not None:
        if not set(params.allowed_token_ids).difference(held_back):
            raise RequestError(
                "no token could be emitted: each of allowed_token_ids is suppressed by the model, or ends the text and "
                "min_tokens holds it back; allow more tokens or lower min_tokens"
            )
    elif vocab_size is not None and len(set(held_back)) >= vocab_size:
        raise RequestError("no token could be emitted: min_tokens holds all back; name fewer stop_token_ids")
