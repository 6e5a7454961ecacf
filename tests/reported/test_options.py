"""Request options under speculation that failed elsewhere; numbers are reported faults. Bundled pair, float64."""

from __future__ import annotations

import pytest
import torch

from frostline import RequestOutput, SamplingParams, SpeculativeConfig
from frostline.model.attention import CausalContext
from tests.equality.bundled import PLAIN, accept_length, bundle
from tests.equality.options import emitted

MODES = {
    "plain": PLAIN,
    "chain": SpeculativeConfig(num_steps=4),
    "tree": SpeculativeConfig(num_steps=3, topk=3, num_draft_tokens=12),
}


def run(mode: str, params: list[SamplingParams]) -> list[RequestOutput]:
    prompts = [prompt.ids for prompt in bundle().held_out()[: len(params)]]
    return bundle().llm(MODES[mode], batch=len(params), context=256).generate(prompts, params)


@pytest.mark.parametrize("mode", MODES)
def test_reported_12_a_stop_that_unusual_tokens_spell_ends_the_text(mode: str) -> None:
    """A bias forces single characters, which no tokenizer would choose; the stop string is what they spell."""
    tokenizer = bundle().tokenizer
    characters = [token for (token,) in (tokenizer.encode(c, add_bos=False) for c in "<END>")]
    forced = {
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 8,
        "logit_bias": dict.fromkeys(characters, 100.0),
        "presence_penalty": 2.0,
    }
    (free,) = run("plain", [SamplingParams(**forced)])
    text = free.outputs[0].text
    assert set(free.outputs[0].token_ids) <= set(characters) and len(text) == 8
    stop = text[1:6]
    assert len(tokenizer.encode(stop, add_bos=False)) <= 5
    (found,) = run(mode, [SamplingParams(**forced, stop=stop)])
    completion = found.outputs[0]
    end = text.index(stop)
    assert (completion.finish_reason, completion.stop_reason, completion.text) == ("stop", stop, text[:end])
    assert completion.token_ids == free.outputs[0].token_ids[: end + 5]


@pytest.mark.parametrize("mode", MODES)
def test_reported_16_every_end_of_text_id_of_the_model_ends_it_and_waits_for_min_tokens(mode: str) -> None:
    """The model's list is [1, 106, 50]: each of them ends a request, and min_tokens holds all of them back."""
    ends = bundle().defaults.eos_token_ids
    assert set(ends) == {1, 106, 50}
    rows = [SamplingParams(temperature=0.0, max_tokens=12, logit_bias={end: 100.0}) for end in ends]
    rows += [SamplingParams(temperature=0.0, max_tokens=12, min_tokens=5, logit_bias={end: 100.0}) for end in ends]
    for number, output in enumerate(run(mode, rows)):
        completion, end = output.outputs[0], ends[number % 3]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
        assert completion.token_ids[-1] == end
        assert len(completion.token_ids) == (1 if number < 3 else 6)
        assert not set(completion.token_ids[:-1]) & set(ends)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reported_17_every_emitted_token_has_one_entry(mode: str, temperature: float) -> None:
    rows = [SamplingParams(temperature=temperature, seed=9, max_tokens=n, logprobs=1) for n in (1, 2, 7, 15)]
    for row, output in zip(rows, run(mode, rows), strict=True):
        completion = output.outputs[0]
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
        assert 1 <= len(completion.token_ids) <= (row.max_tokens or 0)
        for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            assert next(iter(entry)) == token and 1 <= len(entry) <= 2


@pytest.mark.parametrize("mode", MODES)
def test_reported_18_logprobs_are_the_targets_and_equal_plain_decode(mode: str) -> None:
    """They are not 0.0 because a draft was accepted, and not those of a temperature or a penalty."""
    rows = [
        SamplingParams(temperature=1.0, seed=5, max_tokens=16, logprobs=2, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=16, logprobs=2, ignore_eos=True, frequency_penalty=1.0),
        SamplingParams(temperature=0.6, seed=6, top_k=20, max_tokens=16, logprobs=2, ignore_eos=True),
    ]
    for ours, theirs in zip(run(mode, rows), run("plain", rows), strict=True):
        one, other = ours.outputs[0], theirs.outputs[0]
        assert one.token_ids == other.token_ids and one.logprobs is not None and other.logprobs is not None
        for entry, expected in zip(one.logprobs, other.logprobs, strict=True):
            assert list(entry) == list(expected)
            assert all(abs(entry[token].logprob - expected[token].logprob) < 1e-9 for token in entry)
            assert all(found.logprob < 0.0 for found in entry.values())
        # A dense forward under torch's own log_softmax, at every place of the run.
        target, known = bundle().pair.target, [*ours.prompt_token_ids, *one.token_ids]
        context = CausalContext(target.spec, target.rotary, torch.arange(len(known)))
        with torch.inference_mode():
            rows_SV = target.logits(target(torch.tensor([known]), context)[0]).log_softmax(-1)
        first = len(ours.prompt_token_ids) - 1
        for number, (token, entry) in enumerate(zip(one.token_ids, one.logprobs, strict=True)):
            assert abs(entry[token].logprob - float(rows_SV[first + number, token])) < 1e-9


@pytest.mark.parametrize("mode", MODES)
def test_reported_19_penalties_count_every_token_of_a_run(mode: str) -> None:
    """Counted once per iteration, a token repeated within a run would go unpunished: here it is per token."""
    penalties = ({"frequency_penalty": 0.4}, {"frequency_penalty": 2.0}, {"presence_penalty": 1.5})
    rows = [SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, **penalty) for penalty in penalties]
    outputs = run(mode, rows)
    for row, output in zip(rows, outputs, strict=True):
        expected = emitted(bundle(), output.prompt_token_ids, row, output.seed, 16)
        assert list(output.outputs[0].token_ids) == expected
    if mode != "plain":
        assert accept_length(outputs) > 1.5
