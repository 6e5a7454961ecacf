"""Turns a folder that transformers wrote into the released layout: flat config keys, towers, leftovers, shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from frostline.model.spec import target_spec

WEIGHTS = "model.safetensors"
PREFIX = "model.language_model."


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and every tensor of a folder with one weights file."""
    return json.loads((folder / "config.json").read_text()), load_file(folder / WEIGHTS)


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    return folder


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """per_layer_config replaced by global_head_dim and num_global_key_value_heads, as released configs have it."""
    text = dict(config["text_config"])
    full = text.pop("per_layer_config")[str(text["num_hidden_layers"] - 1)]
    text["global_head_dim"] = full["head_dim"]
    text["num_global_key_value_heads"] = full.get("num_key_value_heads")
    return config | {"text_config": text}


def with_leftovers(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds what released archives carry and a text decoder has no place for."""
    more = {
        "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight": torch.ones(3, 3),
        "model.vision_tower.encoder.layers.0.clip_max": torch.tensor(float("inf")),
        "model.audio_tower.conv.weight": torch.ones(2, 2, 2),
        "model.embed_vision.embedding_projection.weight": torch.ones(4, 2),
        "model.embed_audio.embedding_projection.weight": torch.ones(4, 2),
        "model.vision_embedder.patch_ln1.bias": torch.ones(4),
        "lm_head.weight": tensors[PREFIX + "embed_tokens.weight"].clone(),
    }
    for layer in target_spec(config).layers:
        if not layer.owns_kv:
            base, rows = f"{PREFIX}layers.{layer.index}.self_attn.", layer.num_kv_heads * layer.head_dim
            more |= {f"{base}{x}_proj.weight": torch.full((rows, 5), float("nan")) for x in "kv"}
            more[base + "k_norm.weight"] = torch.ones(layer.head_dim)
    return tensors | more


def write_sharded(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int) -> Path:
    """Tensors dealt over `shards` files with an index, so that the parts of a fused parameter lie in several."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {name: shard_name(i % shards, shards) for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensors[name].contiguous() for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def shard_name(index: int, shards: int) -> str:
    return f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
