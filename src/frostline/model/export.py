"""Writes a decoder or an assistant as a Hugging Face folder in the released layout: config.json and safetensors.

The inverse of the loader, through the same map of names: fused parameters are taken apart again, so transformers and
other engines read the folder. Knows nothing of training, tokenizers or model cards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from frostline.errors import ModelError
from frostline.model.assistant import Assistant
from frostline.model.checkpoint import INDEX, SINGLE
from frostline.model.decoder import Decoder
from frostline.model.loader import module_tensors
from frostline.model.names import RELEASED_PREFIX, Slot, assistant_slots, target_slots
from frostline.model.spec import assistant_spec, target_spec

_SHARD_BYTES = 5_000_000_000


def save_target(
    decoder: Decoder,
    config: Mapping[str, Any],
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Write `decoder` and its Hugging Face `config` to `folder`, which is made if need be.

    dtype: of the written weights, None keeps the module's. A text-only config (no text_config) gets the prefix
    `model.`, any other `model.language_model.`. Raises ModelError when `config` describes another model.
    """
    if target_spec(config) != decoder.spec:
        raise ModelError("the config to save does not describe this target: their specs differ")
    prefix = RELEASED_PREFIX if "text_config" in config else "model."
    _save(decoder, target_slots(decoder.spec, prefix), config, Path(folder), dtype, shard_bytes)


def save_assistant(
    assistant: Assistant,
    config: Mapping[str, Any],
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Write `assistant` and its config to `folder`, as save_target does."""
    if assistant_spec(config) != assistant.spec:
        raise ModelError("the config to save does not describe this assistant: their specs differ")
    _save(assistant, assistant_slots(assistant.spec), config, Path(folder), dtype, shard_bytes)


def _save(
    module: nn.Module,
    slots: Mapping[str, Slot],
    config: Mapping[str, Any],
    folder: Path,
    dtype: torch.dtype | None,
    shard_bytes: int,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Weights of an earlier save would be read beside the new ones.
    for stale in (*folder.glob("model*.safetensors"), folder / INDEX):
        stale.unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    places = module_tensors(module, slots)
    shards = list(_shards(slots, places, dtype, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: _taken(slots[name], places, dtype) for name in names}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(_stored_bytes(slot, places, dtype) for slot in slots.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _taken(slot: Slot, places: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    """This tensor's rows, on the CPU and in memory of their own (safetensors refuses views of one another)."""
    rows = places[slot.parameter].detach()[slot.start : slot.stop]
    return rows.to("cpu", rows.dtype if slot.integer else dtype, copy=True).contiguous()


def _stored_bytes(slot: Slot, places: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> int:
    place = places[slot.parameter]
    width = place.dtype if slot.integer or dtype is None else dtype
    return place[slot.start : slot.stop].numel() * width.itemsize


def _shards(
    slots: Mapping[str, Slot], places: Mapping[str, torch.Tensor], dtype: torch.dtype | None, limit: int
) -> Iterator[list[str]]:
    """Names in order, cut so that each shard holds at most `limit` bytes, or one tensor that is larger."""
    names: list[str] = []
    held = 0
    for name, slot in slots.items():
        size = _stored_bytes(slot, places, dtype)
        if names and held + size > limit:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names
