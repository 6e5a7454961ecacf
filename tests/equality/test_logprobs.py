"""Log-probabilities are the target's own at every emitted and prompt token, whatever drafts, batches and options do.

float64, the bundled pair; the last test compares with transformers in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from frostline import Logprob, RequestOutput, SamplingParams, SpeculativeConfig
from frostline.bundled import bundled_path
from frostline.model.attention import CausalContext
from frostline.speculative import executor, prompt
from tests.equality.bundled import PLAIN, TARGET, bundle, differing
from tests.equality.options import equal_entries, option_rows

MODES = {
    "plain": PLAIN,
    "chain": SpeculativeConfig(num_steps=4),
    "tree-k2": SpeculativeConfig(num_steps=3, topk=2, num_draft_tokens=8),
    "tree-k3": SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16),
}
WANTED = (None, 0, 1, 5, 20)
TOKENS = 20


def rows(temperature: float) -> list[SamplingParams]:
    """Every option, with and without log-probabilities of outputs and prompts."""
    return [
        replace(row, logprobs=WANTED[number % 5], prompt_logprobs=WANTED[number * 3 % 5])
        for number, row in enumerate(option_rows(temperature, TOKENS))
    ]


def prompts() -> list[tuple[int, ...]]:
    """One of a single token and one of many windows among them."""
    held_out = [prompt.ids for prompt in bundle().held_out()[30:]]
    return [held_out[0], held_out[1][:1], *held_out[2:9], *bundle().long_prompts((230,))]


def run(mode: str, temperature: float, batch: int = 4, budget: int = 64) -> list[RequestOutput]:
    llm = bundle().llm(MODES[mode], batch=batch, context=512, max_prefill_tokens=budget)
    return llm.generate(prompts(), rows(temperature))


@cache
def outputs(mode: str, temperature: float) -> list[RequestOutput]:
    return run(mode, temperature)


def dense(tokens: Sequence[int]) -> Tensor:
    """Raw log-probabilities [S, V] after each token, from one forward over all."""
    target = bundle().pair.target
    with torch.inference_mode():
        hidden = target(
            torch.tensor([list(tokens)]), CausalContext(target.spec, target.rotary, torch.arange(len(tokens)))
        )
        return target.logits(hidden[0]).log_softmax(-1)


def check(entry: dict[int, Logprob], token: int, row_V: Tensor, wanted: int, *, atol: float = 1e-9) -> None:
    """One position against the log-probabilities of the whole vocabulary there."""
    tokenizer = bundle().tokenizer
    best = row_V.sort(descending=True, stable=True).indices[:wanted].tolist()
    assert list(entry) == [token, *(other for other in best if other != token)]
    for other, found in entry.items():
        assert abs(found.logprob - float(row_V[other])) < atol
        assert found.rank == 1 + int((row_V > row_V[other]).sum())
        assert found.decoded_token == tokenizer.decode([other], skip_special_tokens=False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", MODES)
def test_every_emitted_token_has_the_entry_of_a_dense_forward(mode: str, temperature: float) -> None:
    found = outputs(mode, temperature)
    assert differing(found, outputs("plain", temperature)) == []
    for output, row in zip(found, rows(temperature), strict=True):
        one = output.outputs[0]
        if row.logprobs is None:
            assert one.logprobs is None and one.cumulative_logprob is None
            continue
        assert one.logprobs is not None and len(one.logprobs) == len(one.token_ids)
        after = dense((*output.prompt_token_ids, *one.token_ids))[len(output.prompt_token_ids) - 1 :]
        for token, entry, row_V in zip(one.token_ids, one.logprobs, after, strict=False):
            check(dict(entry), token, row_V, row.logprobs)
        own = [entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)]
        assert one.cumulative_logprob == pytest.approx(sum(own), abs=1e-12)


@pytest.mark.parametrize("mode", ["plain", "chain", "tree-k3"])
def test_prompt_entries_equal_one_full_forward_however_the_prompt_is_cut(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of few tokens, and logits of three rows at a time."""
    target = bundle().pair.target
    monkeypatch.setattr(
        executor,
        "score_prompt",
        lambda *args: prompt.score_prompt(*args, max_logits=3 * target.spec.vocab_size + 1),
    )
    sizes: list[int] = []
    logits = type(target).logits

    def watched(self: object, hidden: Tensor) -> Tensor:
        sizes.append(hidden.numel() // hidden.shape[-1])
        return logits(self, hidden)

    monkeypatch.setattr(type(target), "logits", watched)
    found = run(mode, 0.0, budget=23)
    monkeypatch.undo()
    assert differing(found, outputs("plain", 0.0)) == []
    assert max(sizes) <= max(4 * MODES[mode].verify_width, 4)
    for output, row in zip(found, rows(0.0), strict=True):
        entries, ids = output.prompt_logprobs, output.prompt_token_ids
        if row.prompt_logprobs is None:
            assert entries is None
            continue
        assert entries is not None and len(entries) == len(ids) and entries[0] is None
        for token, entry, row_V in zip(ids[1:], entries[1:], dense(ids), strict=False):
            assert entry is not None
            check(dict(entry), token, row_V, row.prompt_logprobs)


@pytest.mark.parametrize("mode", ["tree-k3"])
def test_recorded_iterations_return_the_same_entries(mode: str) -> None:
    llm = bundle().llm(MODES[mode], batch=10, context=512, capture_after=0)
    found = llm.generate(prompts(), rows(0.0))
    for ours, theirs in zip(found, outputs(mode, 0.0), strict=True):
        assert equal_entries(ours.outputs[0].logprobs, theirs.outputs[0].logprobs)


def test_a_prompt_that_was_seen_before_is_scored_again() -> None:
    """Rows that come from the prefix cache have no hidden states: such a request computes all of them."""
    llm = bundle().llm(MODES["chain"], batch=4, context=512)
    first, second = (llm.generate(prompts(), rows(0.0)) for _ in range(2))
    assert differing(first, second) == []
    for one, other in zip(first, second, strict=True):
        assert equal_entries(one.prompt_logprobs, other.prompt_logprobs)
        assert one.prompt_logprobs is None or None not in other.prompt_logprobs[1:]


def test_entries_are_cut_where_the_ids_are() -> None:
    """A stop string, a stop token, EOS and the length, inside runs."""
    base = {"temperature": 0.0, "max_tokens": 24, "logprobs": 1}
    held_out = [prompt.ids for prompt in bundle().held_out()[:4]]
    (free,) = bundle().llm(PLAIN, batch=1, context=256).generate([held_out[0]], SamplingParams(**base))
    stop = bundle().tokenizer.decode(free.outputs[0].token_ids[5:7])
    params = [
        SamplingParams(**base, stop=stop),
        SamplingParams(**base, stop_token_ids=(free.outputs[0].token_ids[3],)),
        SamplingParams(**base),
        SamplingParams(**base | {"max_tokens": 7}),
    ]
    found = bundle().llm(MODES["tree-k3"], batch=4, context=256).generate([held_out[0]] * 3 + held_out[:1], params)
    for output in found:
        one = output.outputs[0]
        assert one.logprobs is not None and len(one.logprobs) == len(one.token_ids)
        assert all(token in entry for token, entry in zip(one.token_ids, one.logprobs, strict=True))
    assert len(found[0].outputs[0].token_ids) < len(free.outputs[0].token_ids)


def test_streams_and_samples_carry_entries() -> None:
    llm = bundle().llm(MODES["chain"], batch=3, context=256)
    ids = bundle().held_out()[0].ids
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=12, n=3, logprobs=2, prompt_logprobs=1)
    pieces = list(llm.stream([ids], params))
    (whole,) = llm.generate([ids], params)
    assert whole.prompt_logprobs is not None and len(whole.prompt_logprobs) == len(ids)
    for index, completion in enumerate(whole.outputs):
        streamed = [entry for piece in pieces if piece.index == index for entry in piece.logprobs or ()]
        assert completion.logprobs is not None and [list(e) for e in streamed] == [list(e) for e in completion.logprobs]


def test_entries_equal_transformers() -> None:
    """log_softmax of transformers' logits in float32, prompt and output."""
    theirs = AutoModelForCausalLM.from_pretrained(bundled_path(TARGET), dtype=torch.float32).eval()
    theirs.set_attn_implementation("eager")
    picked = [prompt.ids for prompt in bundle().held_out()[:5]] + bundle().long_prompts((200,))
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    found = bundle("float32").llm(MODES["chain"], batch=6, context=256).generate(picked, params)
    for output in found:
        one, ids = output.outputs[0], output.prompt_token_ids
        known = torch.tensor([[*ids, *one.token_ids]])
        with torch.no_grad():
            after = theirs(known).logits[0].log_softmax(-1)
        assert output.prompt_logprobs is not None and one.logprobs is not None
        entries = [*output.prompt_logprobs[1:], *one.logprobs]
        for token, entry, row_V in zip(known[0, 1:].tolist(), entries, after, strict=False):
            assert entry is not None and abs(entry[token].logprob - float(row_V[token])) < 1e-4


# --------------------------------------------------------------------------------------------- make prove


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", ["chain", "tree-k3"])
def test_prove_logprobs(mode: str, temperature: float) -> None:
    several = [prompt.ids for prompt in bundle().held_out()[:56]] + bundle().long_prompts((300, 420, 350, 510))
    wanted = [replace(row, logprobs=5, prompt_logprobs=1) for row in option_rows(temperature, 64) * 6]
    found, expected = (
        bundle().llm(MODES[name], batch=batch).generate(several, wanted) for name, batch in ((mode, 16), ("plain", 7))
    )
    assert differing(found, expected) == []
    for ours, theirs in zip(found, expected, strict=True):
        assert equal_entries(ours.outputs[0].logprobs, theirs.outputs[0].logprobs)
        assert equal_entries(ours.prompt_logprobs, theirs.prompt_logprobs)
