"""Random tiny Gemma 4 pairs of every kind, as transformers models: the oracle of the parity tests.

Sizes are small and odd, the window is 8 so that short prompts run past it, and whatever the default initialisation
leaves at 1 or 0 (norms, scalars, router scales, token ordering) is random, because constants hide mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextConfig,
    PreTrainedModel,
)

WINDOW = 8
VOCAB = 256
SOFTCAP = 5.0

_S, _F = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class TinyKind:
    """What sets one kind apart. extra: keys of the target's text config; ordered: the assistant has centroids."""

    name: str
    hidden: int
    layers: tuple[str, ...]
    heads: int
    kv_heads: int
    extra: dict[str, Any]
    ordered: bool
    unified: bool = False
    kv_shared: int = 0
    global_kv_heads: int | None = None

    @property
    def k_eq_v(self) -> bool:
        return self.global_kv_heads is not None


_SHARING = (_S, _S, _F, _S, _S, _F, _S, _F)
_PLAIN = (_S, _S, _F, _S, _S, _F)
_PLE = {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB}
_NO_PLE = {"hidden_size_per_layer_input": 0}
_MOE = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 20}

KINDS: dict[str, TinyKind] = {
    kind.name: kind
    for kind in (
        TinyKind("e2b", 48, _SHARING, 4, 1, _PLE | {"use_double_wide_mlp": True}, True, kv_shared=4),
        TinyKind("e4b", 40, _SHARING, 4, 2, _PLE, True, kv_shared=4),
        TinyKind("12b", 56, _PLAIN, 4, 2, {}, False, unified=True, global_kv_heads=1),
        TinyKind("26b", 48, _PLAIN, 8, 4, _NO_PLE | _MOE, False, global_kv_heads=2),
        TinyKind("31b", 64, _PLAIN, 8, 4, _NO_PLE, False, global_kv_heads=2),
    )
}


def tiny_target(kind: str, *, seed: int = 0) -> PreTrainedModel:
    """A random target of this kind, float32, eager attention and experts."""
    tiny = KINDS[kind]
    text = _text(tiny, tiny.hidden, tiny.layers, intermediate=72, heads=tiny.heads, shared=tiny.kv_shared)
    text |= tiny.extra | {"final_logit_softcapping": SOFTCAP}
    torch.manual_seed(seed)
    if tiny.unified:
        config: Any = Gemma4UnifiedConfig(
            text_config=Gemma4UnifiedTextConfig(**text), vision_config=None, audio_config=None
        )
        return _finished(Gemma4UnifiedForConditionalGeneration, config)
    config = Gemma4Config(text_config=Gemma4TextConfig(**text), vision_config=None, audio_config=None)
    return _finished(Gemma4ForConditionalGeneration, config)


def tiny_assistant(kind: str, *, seed: int = 1, ordered: bool | None = None) -> PreTrainedModel:
    """A random assistant for this kind's targets. ordered: centroid head or dense head, None as the released one."""
    tiny = KINDS[kind] if ordered is None else replace(KINDS[kind], ordered=ordered)
    heads = tiny.heads if tiny.k_eq_v else tiny.heads // 2
    text = _text(tiny, 24, (_S, _S, _S, _F), intermediate=40, heads=heads, shared=4)
    if not tiny.unified:
        text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    sizes = {
        "backbone_hidden_size": tiny.hidden,
        "use_ordered_embeddings": tiny.ordered,
        "num_centroids": 16,
        "centroid_intermediate_top_k": 4,
    }
    torch.manual_seed(seed)
    if tiny.unified:
        config: Any = Gemma4UnifiedAssistantConfig(text_config=Gemma4UnifiedTextConfig(**text), **sizes)
        return _finished(Gemma4UnifiedAssistantForCausalLM, config)
    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**text), **sizes)
    return _finished(Gemma4AssistantForCausalLM, config)


def save_pair(kind: str, folder: Path, *, ordered: bool | None = None) -> tuple[Path, Path]:
    """A target and its assistant as transformers writes them, in `tiny` and `tiny-assistant` of `folder`."""
    paths = folder / "tiny", folder / "tiny-assistant"
    for model, path in zip((tiny_target(kind), tiny_assistant(kind, ordered=ordered)), paths, strict=True):
        model.save_pretrained(path)
    return paths


def _text(
    tiny: TinyKind, hidden: int, layers: tuple[str, ...], *, intermediate: int, heads: int, shared: int
) -> dict[str, Any]:
    text = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": len(layers),
        "layer_types": list(layers),
        "num_attention_heads": heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_kv_shared_layers": shared,
        "sliding_window": WINDOW,
        "max_position_embeddings": 512,
        "attention_k_eq_v": tiny.k_eq_v,
    }
    return text | ({"num_global_key_value_heads": tiny.global_kv_heads} if tiny.k_eq_v else {})


def _finished(cls: Any, config: Any) -> PreTrainedModel:
    config._attn_implementation = "eager"
    model: PreTrainedModel = cls(config).eval()
    model.set_attn_implementation("eager")
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._experts_implementation = "eager"
    _randomise(model)
    return model


@torch.no_grad()
def _randomise(model: PreTrainedModel) -> None:
    for name, tensor in model.state_dict().items():
        if name.endswith("token_ordering"):
            tensor.copy_(torch.randperm(tensor.numel()))
        elif name.endswith("layer_scalar"):
            tensor.uniform_(0.6, 1.2)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            # Attention has scale 1: at weights around 1 it is nearly one-hot, and rounding errors grow layer by layer.
            tensor.normal_(0.4, 0.1)
        elif tensor.dim() == 1:
            tensor.normal_(1.0, 0.3)
        else:
            tensor.normal_(0.0, tensor.shape[-1] ** -0.5)
