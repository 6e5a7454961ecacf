"""What a pair weighs and reads: parameters, KV and the bytes behind one iteration, from the configs alone.

The floor is the time that reading those bytes takes at a given bandwidth; at small batches no engine can be faster.
Knows no weights and runs nothing. Units: bytes, milliseconds, GB/s = 1e9 bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from frostline.config import SpeculativeConfig
from frostline.errors import ConfigError, PairError
from frostline.model.dtypes import resolve_dtype
from frostline.model.names import assistant_slots, parameter_shapes, target_slots
from frostline.model.pair import check_pair
from frostline.model.resolve import find_draft, resolve_model
from frostline.model.spec import AssistantSpec, LayerSpec, ModelSpec, assistant_spec, read_config, target_spec
from frostline.types import GROUPS

_ID_BYTES = 8


def describe(
    model: str,
    draft: str | None,
    *,
    bandwidth: float,
    dtype: str = "bfloat16",
    context: int = 4096,
    batch: int = 1,
    speculative: SpeculativeConfig | None = None,
) -> dict[str, Any]:
    """Geometry, pair check, sizes, and the time floor of one iteration at `bandwidth` GB/s, as plain JSON values.

    model, draft: names as for `generate`; draft None or "none" describes the target alone. context: KV rows per request
    behind the KV figures. batch: requests in the iteration. Raises ModelError and ConfigError, not PairError: a pair
    that does not fit is described, with `pair.fits` false and the reason.
    """
    if not 0 < bandwidth < math.inf or context < 1 or batch < 1:
        raise ConfigError(
            f"bandwidth (GB/s), context and batch must be positive, got {bandwidth}, {context} and {batch}"
        )
    folder = resolve_model(model, weights=False)
    target = target_spec(read_config(folder))
    draft_folder = find_draft(model, draft or "none", weights=False)
    assistant = None if draft_folder is None else assistant_spec(read_config(draft_folder))
    size = resolve_dtype(dtype, config_dtype=target.dtype, device="cuda").itemsize
    plan = speculative or SpeculativeConfig()
    steps, width = (plan.num_steps, plan.verify_width) if assistant is not None else (0, 1)

    result: dict[str, Any] = {
        "model": str(folder),
        "draft": None if draft_folder is None else str(draft_folder),
        "geometry": _geometry(target),
        "parameters": {"target": _sized(target_parts(target), size)},
        "kv": _kv(target, context, size),
        "pair": None,
    }
    verify = target_bytes(target, batch * width, size)
    kv_read = _kv_read(target.layers, target, context, batch, size)
    iteration: dict[str, Any] = {"num_steps": steps, "rows": batch * width, "target": verify, "kv_target": kv_read}
    floor: dict[str, Any] = {"bandwidth_gb_s": bandwidth, "target_ms": _ms(verify, bandwidth)}
    total = verify + kv_read
    if assistant is not None:
        result["pair"] = _pair(target, assistant)
        result["parameters"]["assistant"] = _sized(assistant_parts(assistant), size)
        reads = draft_bytes(assistant, batch, size)
        iteration["draft_step"] = reads
        iteration["kv_draft_step"] = 0
        for head, read in reads.items():
            floor[f"draft_step_{head}_ms"] = _ms(read, bandwidth)
        used = reads["centroid_head" if assistant.ordered else "dense_head"]
        if result["pair"]["fits"]:
            iteration["kv_draft_step"] = _kv_read(assistant.text.layers, target, context, batch, size)
        total += steps * (used + iteration["kv_draft_step"])
    iteration["total"] = total
    floor["iteration_ms"] = _ms(total, bandwidth)
    return {**result, "iteration_bytes": iteration, "floor": floor}


def target_parts(spec: ModelSpec) -> dict[str, int]:
    """Parameters of a target by part. The head is the embedding (tied), so it adds none of its own."""
    parts = dict.fromkeys(("embedding", "per_layer_embedding", "layers", "experts", "head"), 0)
    for name, shape in parameter_shapes(target_slots(spec, "")).items():
        if ".experts." in name:
            part = "experts"
        else:
            part = {"embed_tokens.weight": "embedding", "embed_tokens_per_layer.weight": "per_layer_embedding"}.get(
                name, "layers"
            )
        parts[part] += math.prod(shape)
    return parts


def assistant_parts(spec: AssistantSpec) -> dict[str, int]:
    """Parameters of an assistant by part: `head` is the tied table, `token_ordering` counts ids of 8 bytes."""
    parts = dict.fromkeys(("layers", "projections", "head", "centroids", "token_ordering"), 0)
    for name, shape in parameter_shapes(assistant_slots(spec)).items():
        if name == "masked_embedding.token_ordering":
            part = "token_ordering"
        elif name == "masked_embedding.centroids.weight":
            part = "centroids"
        else:
            part = "projections" if name.endswith("_projection.weight") else "layers"
            part = "head" if name == "embed_tokens.weight" else part
        parts[part] += math.prod(shape)
    return parts


def distinct_experts(num_experts: int, top_k: int, rows: int) -> float:
    """Expected number of experts that `rows` rows touch when each picks top_k at random: E (1 - (1 - k/E)^rows)."""
    return num_experts * (1.0 - (1.0 - top_k / num_experts) ** rows)


def target_bytes(spec: ModelSpec, rows: int, size: int) -> int:
    """Weight bytes that one forward over `rows` rows reads: every layer and the head once, table rows as gathered."""
    parts = target_parts(spec)
    read = float(parts["layers"] + parts["embedding"])
    read += rows * (spec.hidden_size + len(spec.layers) * spec.ple_dim)
    if spec.moe is not None:
        share = distinct_experts(spec.moe.num_experts, spec.moe.top_k, rows) / spec.moe.num_experts
        read += parts["experts"] * share
    return round(read * size)


def draft_bytes(spec: AssistantSpec, rows: int, size: int) -> dict[str, int]:
    """Weight bytes of one draft step over `rows` rows: `no_head`, `dense_head`, and with centroids `centroid_head`.

    The centroid head reads the centroids, and per row the ids and head rows of its best ones (fewer when rows agree).
    Every step also gathers one row of the target's embedding per row.
    """
    parts = assistant_parts(spec)
    base = (parts["layers"] + parts["projections"] + rows * spec.backbone_size) * size
    reads = {"no_head": base, "dense_head": base + parts["head"] * size}
    if spec.ordered:
        tokens = min(rows * spec.top_centroids * (spec.text.vocab_size // spec.num_centroids), spec.text.vocab_size)
        gathered = tokens * (spec.text.hidden_size * size + _ID_BYTES)
        reads["centroid_head"] = base + parts["centroids"] * size + gathered
    return reads


def _ms(read: int, bandwidth: float) -> float:
    return read / (bandwidth * 1e9) * 1e3


def _sized(parts: Mapping[str, int], size: int) -> dict[str, dict[str, int]]:
    sized = {
        part: {"count": count, "bytes": count * (_ID_BYTES if part == "token_ordering" else size)}
        for part, count in parts.items()
    }
    sized["total"] = {key: sum(entry[key] for entry in sized.values()) for key in ("count", "bytes")}
    return sized


def _geometry(spec: ModelSpec) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for kind in GROUPS:
        layers = [layer for layer in spec.layers if layer.kind == kind]
        if layers:
            owners = spec.owners(kind)
            kinds[kind] = {
                "layers": len(layers),
                "with_own_kv": len(owners),
                "query_heads": layers[0].num_heads,
                "kv_heads": layers[0].num_kv_heads,
                "head_dim": layers[0].head_dim,
                "window": layers[0].window,
            }
    moe = spec.moe
    return {
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "max_positions": spec.max_positions,
        "per_layer_embedding_dim": spec.ple_dim,
        "experts": None if moe is None else {"count": moe.num_experts, "per_token": moe.top_k},
        "layers": kinds,
    }


def _row_bytes(layer: LayerSpec, size: int) -> int:
    """Keys and values of one row of one layer."""
    return 2 * layer.num_kv_heads * layer.head_dim * size


def _kv(spec: ModelSpec, context: int, size: int) -> dict[str, Any]:
    per_token = {kind: sum(_row_bytes(spec.layers[index], size) for index in spec.owners(kind)) for kind in GROUPS}
    rows = {"sliding": min(context, spec.window), "full": context}
    held = {kind: per_token[kind] * rows[kind] for kind in GROUPS}
    return {
        "bytes_per_token": per_token,
        "context": context,
        "bytes": {**held, "total": sum(held.values())},
        # The assistant reads the target's rows and keeps none (architecture 4.5).
        "assistant_bytes": 0,
    }


def _kv_read(layers: Iterable[LayerSpec], target: ModelSpec, context: int, batch: int, size: int) -> int:
    """KV bytes that attention over `layers` reads for `batch` requests of `context` rows; sharing layers read too."""
    total = 0
    for layer in layers:
        owner = target.layers[target.last_owner(layer.kind)]
        total += _row_bytes(owner, size) * (context if layer.window is None else min(context, layer.window))
    return batch * total


def _pair(target: ModelSpec, assistant: AssistantSpec) -> dict[str, Any]:
    try:
        check_pair(target, assistant)
    except PairError as error:
        return {"fits": False, "reason": str(error)}
    return {"fits": True, "reason": None}
