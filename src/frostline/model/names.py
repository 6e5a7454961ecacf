"""Checkpoint tensor names and the parameters that they fill: one map for the loader, the exporter and the figures.

A checkpoint keeps q, k, v and gate, up apart; the decoder fuses each group into one matrix, so a tensor fills a range
of rows. Knows names and shapes only: no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from frostline.errors import ModelError
from frostline.model.spec import AssistantSpec, LayerSpec, ModelSpec

LM_HEAD = "lm_head.weight"
RELEASED_PREFIX = "model.language_model."

# Tensors of a multimodal checkpoint that a text decoder does not use (gemma4.md section 2).
_TOWERS = (
    "model.vision_tower.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.vision_embedder.",
)
_SHARED_KV = re.compile(r"layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm)\.weight")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one checkpoint tensor goes: rows [start, start + shape[0]) of `parameter`.

    integer: the tensor holds token ids (int64 or int32), not weights.
    """

    parameter: str
    start: int = 0
    shape: tuple[int, ...]
    integer: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.shape[0]


def target_slots(spec: ModelSpec, prefix: str) -> dict[str, Slot]:
    """Every tensor that a target's checkpoint must hold, by its full name, with `prefix` one of `spec.prefixes`."""
    return {prefix + name: slot for name, slot in _decoder_slots(spec)}


def assistant_slots(spec: AssistantSpec) -> dict[str, Slot]:
    """Every tensor that an assistant's checkpoint must hold, by its full name.

    The pre-projection takes twice the backbone width: the target's embedding, then its hidden state.
    """
    text, width = spec.text, spec.text.hidden_size
    prefix = text.prefixes[0]
    slots = {prefix + name: slot for name, slot in _decoder_slots(text)}
    slots |= _same("pre_projection.weight", (width, 2 * spec.backbone_size))
    slots |= _same("post_projection.weight", (spec.backbone_size, width))
    if spec.ordered:
        slots |= _same("masked_embedding.centroids.weight", (spec.num_centroids, width))
        ordering = "masked_embedding.token_ordering"
        slots[ordering] = Slot(parameter=ordering, shape=(text.vocab_size,), integer=True)
    return slots


def find_prefix(spec: ModelSpec, names: Iterable[str]) -> str:
    """The first of `spec.prefixes` under which `names` has a tensor of this decoder. Raises ModelError if none has."""
    held = set(names)
    for prefix in spec.prefixes:
        if not held.isdisjoint(target_slots(spec, prefix)):
            return prefix
    tried = ", ".join(f"{p}embed_tokens.weight" for p in spec.prefixes)
    raise ModelError(f"the checkpoint holds no text decoder (looked for {tried}); is it a Gemma 4 checkpoint?")


def is_ignored(name: str, spec: ModelSpec, prefix: str) -> bool:
    """Whether a released checkpoint may carry this tensor although the decoder has no place for it.

    Those are the towers and their embedders, and keys and values of layers that read another layer's. The tied
    `lm_head.weight` is not among them: the loader compares it.
    """
    if name.startswith(_TOWERS) and prefix == RELEASED_PREFIX:
        return True
    match = _SHARED_KV.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    if match is None:
        return False
    index = int(match[1])
    return index < len(spec.layers) and not spec.layers[index].owns_kv


def parameter_shapes(slots: Mapping[str, Slot]) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter that these tensors fill together."""
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in slots.values():
        rows = max(slot.stop, shapes.get(slot.parameter, (0,))[0])
        shapes[slot.parameter] = (rows, *slot.shape[1:])
    return shapes


def _same(name: str, shape: tuple[int, ...]) -> dict[str, Slot]:
    return {name: Slot(parameter=name, shape=shape)}


def _decoder_slots(spec: ModelSpec) -> Iterator[tuple[str, Slot]]:
    width, ple = spec.hidden_size, len(spec.layers) * spec.ple_dim
    named = _same("embed_tokens.weight", (spec.vocab_size, width)) | _same("norm.weight", (width,))
    if spec.ple_dim:
        named |= _same("embed_tokens_per_layer.weight", (spec.ple_vocab, ple))
        named |= _same("per_layer_model_projection.weight", (ple, width))
        named |= _same("per_layer_projection_norm.weight", (spec.ple_dim,))
    yield from named.items()
    for layer in spec.layers:
        base = f"layers.{layer.index}."
        for part in (_block_slots(spec), _attention_slots(layer, width), _mlp_slots(layer, width), _moe_slots(spec)):
            for name, slot in part.items():
                yield base + name, Slot(parameter=base + slot.parameter, start=slot.start, shape=slot.shape)


def _block_slots(spec: ModelSpec) -> dict[str, Slot]:
    width, ple = spec.hidden_size, spec.ple_dim
    slots = _same("layer_scalar", (1,))
    for place in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        slots |= _same(f"{place}_layernorm.weight", (width,))
    if ple:
        slots |= _same("per_layer_input_gate.weight", (ple, width))
        slots |= _same("per_layer_projection.weight", (width, ple))
        slots |= _same("post_per_layer_input_norm.weight", (width,))
    return slots


def _attention_slots(layer: LayerSpec, width: int) -> dict[str, Slot]:
    q_rows, kv_rows = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    parts = [("q_proj", q_rows)]
    slots = _same("self_attn.q_norm.weight", (layer.head_dim,)) | _same("self_attn.o_proj.weight", (width, q_rows))
    if layer.owns_kv:
        # With k_eq_v the raw keys serve as values too, so there is no third projection (gemma4.md 1.5).
        parts += [("k_proj", kv_rows)] if layer.k_eq_v else [("k_proj", kv_rows), ("v_proj", kv_rows)]
        slots |= _same("self_attn.k_norm.weight", (layer.head_dim,))
    return slots | _stacked("self_attn", "qkv_proj", parts, width)


def _mlp_slots(layer: LayerSpec, width: int) -> dict[str, Slot]:
    parts = [("gate_proj", layer.intermediate), ("up_proj", layer.intermediate)]
    return _stacked("mlp", "gate_up_proj", parts, width) | _same("mlp.down_proj.weight", (width, layer.intermediate))


def _moe_slots(spec: ModelSpec) -> dict[str, Slot]:
    if spec.moe is None:
        return {}
    width, count, inner = spec.hidden_size, spec.moe.num_experts, spec.moe.intermediate
    slots = _same("router.proj.weight", (count, width)) | _same("router.scale", (width,))
    slots |= _same("router.per_expert_scale", (count,))
    slots |= _same("experts.gate_up_proj", (count, 2 * inner, width))
    slots |= _same("experts.down_proj", (count, width, inner))
    for place in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        slots |= _same(f"{place}.weight", (width,))
    return slots


def _stacked(module: str, fused: str, parts: list[tuple[str, int]], width: int) -> dict[str, Slot]:
    """Tensors whose rows lie one below the other in the parameter `fused`, in this order."""
    slots, start = {}, 0
    for name, rows in parts:
        slots[f"{module}.{name}.weight"] = Slot(parameter=f"{module}.{fused}.weight", start=start, shape=(rows, width))
        start += rows
    return slots
