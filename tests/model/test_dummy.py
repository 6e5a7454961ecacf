"""Random weights: finite in bfloat16 at real depth, reproducible, and a pair that drafts."""

from __future__ import annotations

import pytest
import torch

from frostline.model.attention import CausalContext, FrozenDenseContext
from frostline.model.dummy import dummy_assistant, dummy_target
from frostline.model.spec import AssistantSpec, ModelSpec, assistant_spec, read_config, target_spec
from tests.model.test_spec import NAMES, folder


def _shrunk(name: str) -> tuple[ModelSpec, AssistantSpec]:
    """A released pair at its full depth and head pattern, with small widths."""
    target, assistant = (read_config(folder(name, assistant=a)) for a in (False, True))
    for config, hidden in ((target, 64), (assistant, 32)):
        config["text_config"] |= {
            "hidden_size": hidden,
            "vocab_size": 512,
            "intermediate_size": 96,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 8,
        }
    text = target["text_config"]
    if text.get("hidden_size_per_layer_input"):
        text |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512}
    if text.get("enable_moe_block"):
        text |= {"moe_intermediate_size": 16, "num_experts": 16}
    assistant |= {"backbone_hidden_size": 64, "num_centroids": 16, "centroid_intermediate_top_k": 4}
    return target_spec(target), assistant_spec(assistant)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_activations_stay_finite_in_bfloat16(name: str) -> None:
    target_s, assistant_s = _shrunk(name)
    target = dummy_target(target_s, dtype=torch.bfloat16, device="cpu", seed=3)
    assistant = dummy_assistant(assistant_s, target_s, dtype=torch.bfloat16, device="cpu", seed=4)
    tokens = torch.randint(0, 512, (2, 24))
    context = CausalContext(target_s, target.rotary, torch.arange(24))
    hidden = target(tokens, context)
    logits = target.logits(hidden)
    assert logits.isfinite().all() and 0.1 < logits.std() < 10
    drafting = FrozenDenseContext(
        target_s,
        assistant.rotary,
        kv={kind: context.kv[target_s.last_owner(kind)] for kind in ("sliding", "full")},
        positions_T=torch.arange(24),
        offset=0,
    )
    for _ in range(4):
        u, hidden = assistant.step(target.embed(tokens), hidden, drafting)
    draft = assistant.head(u.flatten(0, 1)).logits
    assert draft.isfinite().all() and hidden.isfinite().all() and 0.1 < draft.std() < 10


def test_the_seed_decides_and_the_ordering_is_a_permutation() -> None:
    spec, drafter = _shrunk("E2B")

    def state(seed: int) -> dict[str, torch.Tensor]:
        target = dummy_target(spec, dtype=torch.float32, device="cpu", seed=seed)
        assistant = dummy_assistant(drafter, spec, dtype=torch.float32, device="cpu", seed=seed)
        return {**target.state_dict(), **{f"assistant.{k}": v for k, v in assistant.state_dict().items()}}

    first, again, other = state(1), state(1), state(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    ordering = first["assistant.masked_embedding.token_ordering"]
    assert torch.equal(ordering.sort().values, torch.arange(512))
    assert not torch.equal(ordering, torch.arange(512))
