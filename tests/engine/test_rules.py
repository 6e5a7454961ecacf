"""Options that change logits: what is refused, and what they become for the device."""

from __future__ import annotations

from typing import Any

import pytest

from frostline import ConfigError, RequestError, SamplingParams
from frostline.engine.rules import logit_rules, resumed
from frostline.runner.rules import NEVER, LogitRules, RuleFeatures
from tests.engine.fake_executor import FakeExecutor, hashed
from tests.engine.harness import engine_on, run, run_script
from tests.text.byte_level import EOS, byte_ids

A, B, X, Y = byte_ids("abxy")
NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequency_penalty": 2.1}, "frequency_penalty must be -2 to 2"),
        ({"frequency_penalty": NAN}, "frequency_penalty must be -2 to 2"),
        ({"presence_penalty": -2.5}, "presence_penalty must be -2 to 2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": NAN}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be above 0"),
        ({"logit_bias": {3: 101.0}}, "logit_bias must be -100 to 100, got 101.0 for token 3; .* allowed_token_ids"),
        ({"logit_bias": {3: NAN}}, "logit_bias must be -100 to 100"),
        ({"logit_bias": {3: float("-inf")}}, "logit_bias must be -100 to 100"),
        ({"min_tokens": -1}, "min_tokens must be 0 to max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, r"min_tokens must be 0 to max_tokens \(8\), got 9"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty, .* leave it out"),
        ({"logprobs": -1}, "logprobs must be 0 .* to 20, got -1"),
        ({"logprobs": 21}, "logprobs must be 0 .* to 20, got 21"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be 0 .* to 20, got 21"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**options)


def test_parameters_stay_values() -> None:
    first = SamplingParams(logit_bias={7: 1, 3: -2.5}, allowed_token_ids=[7, 3], min_tokens=2)
    assert first.logit_bias == first.bias_pairs == ((3, -2.5), (7, 1.0)) and first.allowed_token_ids == (7, 3)
    assert SamplingParams(logit_bias=first.logit_bias, allowed_token_ids=(7, 3), min_tokens=2) == first
    assert hash(first) == hash(first) and SamplingParams(logit_bias={}).logit_bias is None
    assert not SamplingParams().is_penalised and SamplingParams(repetition_penalty=0.9).is_penalised


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_token_ids": [5, 9999]}, "allowed_token_ids holds token id 9999, outside the vocabulary"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias holds token id -1, outside the vocabulary"),
        ({"allowed_token_ids": [EOS], "min_tokens": 1}, "no token could be emitted: .* lower min_tokens"),
        ({"allowed_token_ids": [X], "min_tokens": 1, "stop_token_ids": (X,)}, "no token could be emitted"),
        ({"allowed_token_ids": [Y]}, "no token could be emitted: each of allowed_token_ids is suppressed"),
    ],
)
def test_requests_that_could_emit_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    engine = engine_on(FakeExecutor(hashed([A])), suppress_token_ids=(Y,))
    with pytest.raises(RequestError, match=message):
        engine.request([A], SamplingParams(**options))


def rules_of(params: SamplingParams, suppressed: tuple[int, ...] = ()) -> LogitRules | None:
    return logit_rules(params, (A, B, A), eos_token_ids=(EOS,), suppress_token_ids=suppressed, vocab_size=None)


def test_rules_of_options() -> None:
    assert rules_of(SamplingParams()) is None
    # EOS waits with ignore_eos too, as in vLLM; a suppressed stop token is never emitted.
    held = rules_of(SamplingParams(min_tokens=4, stop_token_ids=(X, Y), ignore_eos=True), suppressed=(Y,))
    assert held == LogitRules(earliest=tuple(sorted([(EOS, 7), (X, 7), (Y, NEVER)])))
    assert held.masks_until == NEVER and not held.has_penalties
    penalised = rules_of(SamplingParams(presence_penalty=0.5, allowed_token_ids=(X, A, A)))
    assert penalised == LogitRules(presence=0.5, prompt_ids=(A, B, A), allowed=tuple(sorted((A, X))))
    assert rules_of(SamplingParams(), suppressed=(Y,)) == LogitRules(earliest=((Y, NEVER),))


def test_a_resumed_request_has_its_output_counted() -> None:
    penalised, biased = LogitRules(frequency=1.0, prompt_ids=(A,)), LogitRules(bias=((A, 1.0),))
    assert resumed(penalised, [B, B]) == LogitRules(frequency=1.0, prompt_ids=(A,), output_ids=(B, B))
    assert resumed(penalised, []) is penalised and resumed(biased, [B]) is biased and resumed(None, [B]) is None


def test_steps_carry_rules_and_plans_only_what_is_needed() -> None:
    device = FakeExecutor(hashed([A, B]))
    engine = engine_on(device, steps=0)
    held = SamplingParams(min_tokens=3, max_tokens=6, ignore_eos=True)
    run(engine, [engine.request([A, B], held), engine.request([A], SamplingParams(max_tokens=2, logit_bias={B: 1.0}))])
    inits = [init.rules for step in device.steps for init in step.inits]
    assert inits == [LogitRules(earliest=((EOS, 5),)), LogitRules(bias=((B, 1.0),))]
    features = [step.plan.rules for step in device.steps]
    # The mask is dropped once every row is past its minimum.
    assert features[0] == RuleFeatures(bias=True, masks=True) and features[-1] == RuleFeatures()
    assert [found.masks for found in features] == [True, True, True, False, False, False]


# ------------------------------------------------------------------------------------------------ finish rules


@pytest.mark.parametrize("runs", [[1] * 9, [5, 4], [3, 3, 3]])
def test_a_stop_string_before_min_tokens_is_passed_over(runs: list[int]) -> None:
    tokens = [X, A, X, B, A, X, Y, X]
    params = SamplingParams(stop="x", min_tokens=4, max_tokens=8)
    found = run_script(tokens, runs, params).outputs[0]
    assert (found.token_ids, found.text, found.finish_reason) == (tuple(tokens[:6]), "xaxba", "stop")


@pytest.mark.parametrize("runs", [[1] * 9, [5, 4], [3, 3, 3]])
def test_a_stop_string_may_begin_before_min_tokens_and_end_after(runs: list[int]) -> None:
    tokens = [A, B, X, A, B, X, Y]
    # "ab" ends at the second and at the fifth token; "bx" at the third, with min_tokens 2 the first that counts.
    found = run_script(tokens, runs, SamplingParams(stop=["ab", "bx"], min_tokens=2, max_tokens=7)).outputs[0]
    assert (found.token_ids, found.text, found.stop_reason) == ((A, B, X), "a", "bx")
    found = run_script(tokens, runs, SamplingParams(stop=["ab", "abx"], min_tokens=2, max_tokens=7)).outputs[0]
    assert (found.token_ids, found.text, found.stop_reason) == ((A, B, X), "", "abx")
    found = run_script(tokens, runs, SamplingParams(stop=["ab", "abxy"], min_tokens=2, max_tokens=7)).outputs[0]
    assert (found.token_ids, found.text, found.stop_reason) == ((A, B, X, A, B), "abx", "ab")


def test_min_tokens_beyond_what_the_context_leaves_end_by_length() -> None:
    engine = engine_on(FakeExecutor(hashed([A, B]), max_context=12))
    request = engine.request([A] * 8, SamplingParams(min_tokens=16, max_tokens=16))
    (output,) = run(engine, [request])
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (4, "length")
