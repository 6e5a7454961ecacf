"""Greedy text and first drafts against transformers' own generate, float32, plain and with its assisted generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma4AssistantForCausalLM
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from frostline import SamplingParams, SpeculativeConfig
from frostline.bundled import bundled_path
from frostline.model.attention import CausalContext
from tests.equality.bundled import ASSISTANT, PLAIN, TARGET, bundle, report
from tests.equality.recording import RecordingExecutor

CHAIN = SpeculativeConfig(num_steps=4)
# Two float32 implementations may choose differently where float64 logits are closer than this, and nowhere else.
NEAR_TIE = 1e-4


@dataclass(frozen=True)
class Theirs:
    target: Any
    assistant: Any

    def generate(self, ids: Sequence[int], tokens: int, *, assisted: bool) -> tuple[int, ...]:
        with torch.no_grad():
            out = self.target.generate(
                torch.tensor([list(ids)]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                max_new_tokens=tokens,
                do_sample=False,
                temperature=None,
                top_k=None,
                top_p=None,
                **({"assistant_model": self.assistant} if assisted else {}),
            )
        return tuple(out[0, len(ids) :].tolist())


@cache
def theirs() -> Theirs:
    target = AutoModelForCausalLM.from_pretrained(bundled_path(TARGET), dtype=torch.float32)
    assistant = Gemma4AssistantForCausalLM.from_pretrained(bundled_path(ASSISTANT), dtype=torch.float32)
    for model in (target, assistant):
        model.eval().set_attn_implementation("eager")
    assistant.generation_config.num_assistant_tokens = CHAIN.num_steps
    return Theirs(target, assistant)


def gap(prompt: Sequence[int], ours: Sequence[int], others: Sequence[int]) -> float | None:
    """None when equal; else by how much the float64 logits of the two tokens differ where the texts part."""
    if tuple(ours) == tuple(others):
        return None
    at = next((n for n, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), None)
    if at is None:  # one of them goes on after the other's end: no tie explains that
        return float("inf")
    target = bundle("float64").pair.target
    known = [*prompt, *ours[:at]]
    with torch.inference_mode():
        hidden = target(torch.tensor([known]), CausalContext(target.spec, target.rotary, torch.arange(len(known))))
        logits = target.logits(hidden[0, -1])
    return float((logits[ours[at]] - logits[others[at]]).abs())


def compare(count: int, tokens: int, batch: int) -> dict[str, Any]:
    prompts = [prompt.ids for prompt in bundle().held_out()[:count]] + bundle().long_prompts((250,))
    row = SamplingParams(temperature=0.0, max_tokens=tokens)
    runs = {
        name: [tuple(o.outputs[0].token_ids) for o in bundle("float32").llm(config, batch=batch).generate(prompts, row)]
        for name, config in {"plain": PLAIN, "chain4": CHAIN}.items()
    }
    gaps: dict[str, list[float]] = {}
    total = 0
    for assisted in (False, True):
        for number, ids in enumerate(prompts):
            other = theirs().generate(ids, tokens, assisted=assisted)
            total += len(other)
            for name, ours in runs.items():
                found = gap(ids, ours[number], other)
                if found is not None:
                    gaps.setdefault(f"{name} against {'assisted' if assisted else 'plain'}", []).append(found)
    assert all(found < NEAR_TIE for several in gaps.values() for found in several), gaps
    return {"prompts": len(prompts), "tokens_of_transformers": total, "near_ties": gaps}


def test_greedy_text_equals_transformers() -> None:
    report("transformers-few", compare(5, 24, batch=3))


@pytest.mark.slow
def test_prove_greedy_text_equals_transformers() -> None:
    report("transformers", compare(50, 64, batch=16))


# ------------------------------------------------------------------------------------- first-round drafts


def our_first_drafts(prompts: Sequence[tuple[int, ...]], dtype: str) -> list[tuple[int, ...]]:
    recorders: list[RecordingExecutor] = []

    def wrap(device: Any) -> RecordingExecutor:
        recorders.append(RecordingExecutor(device))
        return recorders[0]

    row = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    bundle(dtype).llm(CHAIN, wrap=wrap, batch=8).generate(list(prompts), row)
    nodes = [track.iterations[0].run.nodes for track in recorders[0].tracks]
    return [found.tokens[1:] for found in nodes if found is not None]


def their_first_drafts(ids: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """What transformers' own assisted generation drafts in its first round, seen on its way."""
    seen: list[tuple[int, ...]] = []
    real = SinglePositionMultiTokenCandidateGenerator.get_candidates

    def watched(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = real(self, input_ids, *args, **kwargs)
        if found[0].shape[1] > input_ids.shape[1]:
            seen.append(tuple(found[0][0, input_ids.shape[1] :].tolist()))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SinglePositionMultiTokenCandidateGenerator, "get_candidates", watched)
        theirs().generate(ids, CHAIN.num_steps + 2, assisted=True)
    return seen[0]


def their_drafts_under_our_mask(ids: Sequence[int]) -> tuple[int, ...]:
    """transformers' target and assistant by hand, sliding layers shown the rows with `P - row < W` only."""
    window = bundle().pair.target.spec.window
    with torch.no_grad():
        out = theirs().target(torch.tensor([list(ids)]), output_hidden_states=True, return_shared_kv_states=True)
        shared, hidden = dict(out.shared_kv_states), out.hidden_states[-1][:, -1:]
        first = max(0, len(ids) - window + 1)
        shared["sliding_attention"] = tuple(x[:, :, first:] for x in shared["sliding_attention"])
        token, drafts = out.logits[:, -1:].argmax(-1), []
        for _ in range(CHAIN.num_steps):
            embedded = theirs().target.get_input_embeddings()(token)
            step = theirs().assistant(
                inputs_embeds=torch.cat((embedded, hidden), -1),
                position_ids=torch.tensor([[len(ids)]]),
                shared_kv_states=shared,
            )
            token, hidden = step.logits.argmax(-1), step.last_hidden_state
            drafts.append(int(token))
    return tuple(drafts)


def short_prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of at most W - 1 tokens, one of them of exactly that many."""
    longest = bundle().pair.target.spec.window - 1
    held_out = bundle().held_out()
    fitting = [prompt.ids for prompt in held_out if len(prompt.ids) <= longest]
    exact = next(prompt.ids for prompt in held_out if len(prompt.ids) > longest)[:longest]
    return [*fitting[: count - 1], exact]


def test_first_drafts_up_to_the_window_equal_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle().pair.assistant is not None and bundle().pair.assistant.spec.draft_position == "P"
    picked = short_prompts(10)
    assert our_first_drafts(picked, "float32") == [their_first_drafts(ids, monkeypatch) for ids in picked]


def test_first_drafts_past_the_window_equal_transformers_under_the_same_mask() -> None:
    long = [prompt.ids for prompt in bundle().held_out() if len(prompt.ids) > 80][:6]
    picked = [*short_prompts(3), *long, *bundle().long_prompts((230, 300))]
    assert our_first_drafts(picked, "float32") == [their_drafts_under_our_mask(ids) for ids in picked]


@pytest.mark.slow
def test_prove_first_drafts_equal_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    short = short_prompts(50)
    wrong = [
        ids
        for ids, ours in zip(short, our_first_drafts(short, "float32"), strict=True)
        if ours != their_first_drafts(ids, monkeypatch)
    ]
    long = [prompt.ids for prompt in bundle().held_out() if len(prompt.ids) > 63][:50]
    beyond = [
        ids
        for ids, ours in zip(long, our_first_drafts(long, "float32"), strict=True)
        if ours != their_drafts_under_our_mask(ids)
    ]
    report(
        "transformers-first-drafts",
        {"short": len(short), "differing": len(wrong), "past_the_window": len(long), "differing_there": len(beyond)},
    )
    assert wrong == [] and beyond == []
