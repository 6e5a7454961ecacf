"""What a checkpoint is, read from its Hugging Face config: the only reader of that file.

One decoder is driven by a ModelSpec; the kinds of Gemma 4 (E2B, E4B, 12B unified, 26B-A4B, 31B) and the text part of
every assistant differ only in the values here. Knows nothing of weights, devices or attention.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from frostline.errors import ModelError
from frostline.types import GROUPS, Group

_LAYER_KINDS: dict[str, Group] = {"sliding_attention": "sliding", "full_attention": "full"}

TARGET_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
ASSISTANT_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary embedding of one layer kind: `rotated` pairs (d, d + head_dim/2) turn by position * theta^(-2d/head_dim).

    The other pairs pass through. "proportional" rope (full layers) divides the exponent by the whole head_dim.
    """

    head_dim: int
    theta: float
    rotated: int
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MoESpec:
    num_experts: int
    top_k: int
    intermediate: int


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer. kv_owner: the layer whose keys and values it reads, itself unless it shares; -1 in an assistant."""

    index: int
    kind: Group
    num_heads: int
    num_kv_heads: int
    head_dim: int
    k_eq_v: bool
    kv_owner: int
    intermediate: int
    window: int | None

    @property
    def owns_kv(self) -> bool:
        return self.kv_owner == self.index


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder: sizes, layers, and what the maths of gemma4.md section 1 needs.

    ple_dim: width of per-layer embeddings, 0 without. softcap: final logit cap or None. prefixes: tensor name prefixes
    under which a checkpoint may keep this decoder, tried in order.
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    eps: float
    ple_dim: int
    ple_vocab: int
    softcap: float | None
    moe: MoESpec | None
    ropes: Mapping[Group, RopeSpec]
    window: int
    max_positions: int
    pad_token_id: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str
    prefixes: tuple[str, ...] = ("model.language_model.", "model.")

    @property
    def first_shared(self) -> int:
        """Index of the first layer without own keys and values; the layer count when every layer has them."""
        return next((layer.index for layer in self.layers if not layer.owns_kv), len(self.layers))

    def owners(self, kind: Group) -> tuple[int, ...]:
        """Layers of this kind that own keys and values."""
        return tuple(layer.index for layer in self.layers if layer.kind == kind and layer.owns_kv)

    def last_owner(self, kind: Group) -> int:
        """The owner that shared layers and the assistant's layers of this kind read (gemma4.md 1.6, 3.1)."""
        return self.owners(kind)[-1]


@dataclass(frozen=True, kw_only=True)
class AssistantSpec:
    """A drafter: its text part, the width of the backbone that it was made for, and its centroid head if it has one.

    draft_position: the constant position it was trained with, None when the config does not say.
    """

    text: ModelSpec
    backbone_size: int
    num_centroids: int
    top_centroids: int
    draft_position: Literal["P", "P-1"] | None

    @property
    def ordered(self) -> bool:
        """Whether the head looks only at the tokens of its best centroids (gemma4.md 3.3)."""
        return self.num_centroids > 0


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder. Raises ModelError when it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} not found: a model is a folder with config.json and safetensors files") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return config


def target_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Spec of a target from its config. Raises ModelError for what this decoder cannot honour."""
    kind = config.get("model_type")
    if kind in ASSISTANT_TYPES:
        raise ModelError(f"model_type {kind!r} is an assistant; give it with --draft and its target with --model")
    if kind not in TARGET_TYPES:
        raise ModelError(f"model_type {kind!r} is not supported; supported: {', '.join(TARGET_TYPES)}")
    text = config.get("text_config", config)
    _refuse_quantized(config)
    return _text_spec(text, dtype=str(config.get("dtype") or text.get("dtype") or "bfloat16"), assistant=False)


def assistant_spec(config: Mapping[str, Any]) -> AssistantSpec:
    """Spec of an assistant from its config; every size of its layers comes from its own text_config."""
    kind = config.get("model_type")
    if kind not in ASSISTANT_TYPES:
        raise ModelError(f"model_type {kind!r} is not an assistant; supported: {', '.join(ASSISTANT_TYPES)}")
    text = _need(config, "text_config")
    _refuse_quantized(config)
    spec = _text_spec(text, dtype=str(config.get("dtype") or text.get("dtype") or "bfloat16"), assistant=True)
    if spec.ple_dim or spec.moe is not None:
        raise ModelError("an assistant with per-layer embeddings or experts is not supported: Gemma 4's have neither")
    ordered = bool(config.get("use_ordered_embeddings", False))
    centroids = int(_need(config, "num_centroids")) if ordered else 0
    top = int(_need(config, "centroid_intermediate_top_k")) if ordered else 0
    if ordered and (centroids < 1 or spec.vocab_size % centroids):
        raise ModelError(f"num_centroids {centroids} must divide the vocabulary size {spec.vocab_size}")
    if ordered and not 1 <= top <= centroids:
        raise ModelError(f"centroid_intermediate_top_k must be 1 to num_centroids {centroids}, got {top}")
    position = config.get("draft_position")
    if position not in (None, "P", "P-1"):
        raise ModelError(f"draft_position in the assistant's config must be 'P' or 'P-1', got {position!r}")
    return AssistantSpec(
        text=spec,
        backbone_size=int(_need(config, "backbone_hidden_size")),
        num_centroids=centroids,
        top_centroids=top,
        draft_position=position,
    )


def _need(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ModelError(f"config.json has no {key!r}")
    return config[key]


def _refuse_quantized(config: Mapping[str, Any]) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"the checkpoint is quantized ({method}); only dense weights are supported, use the original")


def _text_spec(text: Mapping[str, Any], *, dtype: str, assistant: bool) -> ModelSpec:
    activation = text.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise ModelError(f"hidden_activation {activation!r} is not supported, only gelu_pytorch_tanh")
    if text.get("attention_bias"):
        raise ModelError("attention_bias is not supported: no Gemma 4 checkpoint has biases")
    if text.get("use_bidirectional_attention") == "all":
        raise ModelError("this is an embedding model (use_bidirectional_attention 'all'); it does not generate text")
    kinds = _layer_kinds(text)
    ropes = {kind: _rope(text, kind, kinds) for kind in GROUPS if kind in kinds}
    layers = _layers(text, kinds, assistant=assistant)
    eos = text.get("eos_token_id", 1)
    ple_dim = int(text.get("hidden_size_per_layer_input") or 0)
    return ModelSpec(
        vocab_size=int(_need(text, "vocab_size")),
        hidden_size=int(_need(text, "hidden_size")),
        layers=layers,
        eps=float(text.get("rms_norm_eps", 1e-6)),
        ple_dim=ple_dim,
        ple_vocab=int(text.get("vocab_size_per_layer_input") or 0) if ple_dim else 0,
        softcap=text.get("final_logit_softcapping"),
        moe=_moe(text),
        ropes=ropes,
        window=int(text.get("sliding_window", 512)),
        max_positions=int(text.get("max_position_embeddings", 131072)),
        pad_token_id=int(text.get("pad_token_id") or 0),
        bos_token_id=text.get("bos_token_id"),
        eos_token_ids=tuple(eos) if isinstance(eos, list | tuple) else (() if eos is None else (int(eos),)),
        dtype=dtype,
        prefixes=("model.",) if assistant else ("model.language_model.", "model."),
    )


def _layer_kinds(text: Mapping[str, Any]) -> list[Group]:
    count = int(_need(text, "num_hidden_layers"))
    pattern = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)]
    names = text.get("layer_types") or pattern
    if len(names) != count:
        raise ModelError(f"layer_types has {len(names)} entries for num_hidden_layers {count}")
    unknown = sorted({name for name in names if name not in _LAYER_KINDS})
    if unknown:
        raise ModelError(f"layer_types {unknown} are not supported")
    # The last layer is always full attention, whatever the file says (gemma4.md section 2).
    return [*(_LAYER_KINDS[name] for name in names[:-1]), "full"]


def _head_geometry(text: Mapping[str, Any], index: int, kind: Group) -> tuple[int, int]:
    """(kv heads, head_dim) of a layer: from per_layer_config where it is written, else from the flat keys."""
    kv_heads, head_dim = int(_need(text, "num_key_value_heads")), int(text.get("head_dim", 256))
    overrides = text.get("per_layer_config")
    if overrides is not None:
        # Layer indices are written zero-padded ("03") in models of ten layers and more.
        layer: Mapping[str, Any] = next((value for key, value in overrides.items() if int(key) == index), {})
        return int(layer.get("num_key_value_heads", kv_heads)), int(layer.get("head_dim", head_dim))
    if kind == "full":
        head_dim = int(text.get("global_head_dim") or 512)
        if text.get("attention_k_eq_v") and text.get("num_global_key_value_heads") is not None:
            kv_heads = int(text["num_global_key_value_heads"])
    return kv_heads, head_dim


def _layers(text: Mapping[str, Any], kinds: list[Group], *, assistant: bool) -> tuple[LayerSpec, ...]:
    count = len(kinds)
    # Every layer of an assistant reads the target's keys and values, also where the config leaves the count out.
    first_shared = 0 if assistant else count - int(text.get("num_kv_shared_layers") or 0)
    if not assistant and not 0 < first_shared <= count:
        raise ModelError(f"num_kv_shared_layers {count - first_shared} leaves no layer with keys and values of its own")
    heads, intermediate = int(_need(text, "num_attention_heads")), int(_need(text, "intermediate_size"))
    layers = []
    for index, kind in enumerate(kinds):
        owner = index
        if index >= first_shared:
            owner = -1 if assistant else max((i for i in range(first_shared) if kinds[i] == kind), default=-1)
            if owner < 0 and not assistant:
                raise ModelError(f"layer {index} shares keys and values but no earlier {kind} layer has its own")
        kv_heads, head_dim = _head_geometry(text, index, kind)
        if heads % kv_heads:
            raise ModelError(f"layer {index}: {heads} query heads cannot share {kv_heads} key-value heads evenly")
        doubled = bool(text.get("use_double_wide_mlp")) and owner != index
        layers.append(
            LayerSpec(
                index=index,
                kind=kind,
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                k_eq_v=bool(text.get("attention_k_eq_v")) and kind == "full",
                kv_owner=owner,
                intermediate=intermediate * (2 if doubled else 1),
                window=int(text.get("sliding_window", 512)) if kind == "sliding" else None,
            )
        )
    return tuple(layers)


def _moe(text: Mapping[str, Any]) -> MoESpec | None:
    if not text.get("enable_moe_block"):
        return None
    return MoESpec(
        num_experts=int(_need(text, "num_experts")),
        top_k=int(_need(text, "top_k_experts")),
        intermediate=int(_need(text, "moe_intermediate_size")),
    )


def _rope(text: Mapping[str, Any], kind: Group, kinds: list[Group]) -> RopeSpec:
    name = f"{kind}_attention"
    params = (text.get("rope_parameters") or {}).get(name) or {}
    rope_type = params.get("rope_type", "default" if kind == "sliding" else "proportional")
    theta = float(params.get("rope_theta", 1e4 if kind == "sliding" else 1e6))
    _, head_dim = _head_geometry(text, kinds.index(kind), kind)
    if rope_type == "default":
        return RopeSpec(head_dim=head_dim, theta=theta, rotated=head_dim // 2)
    if rope_type == "proportional":
        part = float(params.get("partial_rotary_factor", 1.0 if kind == "sliding" else 0.25))
        rotated = min(math.floor(part * head_dim) // 2, head_dim // 2)
        return RopeSpec(head_dim=head_dim, theta=theta, rotated=rotated, factor=float(params.get("factor", 1.0)))
    raise ModelError(f"rope_type {rope_type!r} of {name} is not supported, only 'default' and 'proportional'")
