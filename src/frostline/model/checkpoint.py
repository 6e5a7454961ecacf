"""A checkpoint folder's tensors: safetensors in one file or several, headers first, data one tensor at a time.

Knows files, names, shapes and dtypes; nothing of what the tensors mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from frostline.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# safetensors dtype names; whatever is in neither set is packed or quantized.
DENSE = frozenset({"F64", "F32", "F16", "BF16"})
IDS = frozenset({"I64", "I32"})


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """What a file says of one tensor before its data is read; dtype is the safetensors name, such as "BF16"."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Header of every tensor in the folder's checkpoint, by name.

    Raises ModelError for a folder without safetensors, a missing or unreadable shard, a tensor in two shards, and a
    tensor that the index promises and its shard lacks.
    """
    promised = _promised(folder)
    headers: dict[str, TensorHeader] = {}
    for file in promised or {folder / SINGLE: set()}:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                if name in headers:
                    raise ModelError(
                        f"tensor {name} is in both {headers[name].file.name} and {file.name} of {folder}; "
                        "remove the shard that does not belong, or download the checkpoint again"
                    )
                part = tensors.get_slice(name)
                headers[name] = TensorHeader(file=file, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    for file, names in promised.items():
        for name in sorted(names):
            if name not in headers or headers[name].file != file:
                raise ModelError(f"{INDEX} says that {file.name} holds {name}, but it does not; download it again")
    return headers


def read_tensors(headers: dict[str, TensorHeader]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and CPU tensor of every header, file by file; one tensor is in memory at a time if the caller keeps none."""
    files: dict[Path, list[str]] = {}
    for name, header in headers.items():
        files.setdefault(header.file, []).append(name)
    for file, names in files.items():
        with _opened(file) as tensors:
            for name in names:
                yield name, tensors.get_tensor(name)


def _promised(folder: Path) -> dict[Path, set[str]]:
    """Names that the index gives to each shard; empty for a checkpoint in one file."""
    index, single = folder / INDEX, folder / SINGLE
    if not index.is_file():
        if not single.is_file():
            raise ModelError(f"{folder} has no weights: {_what_instead(folder)}")
        return {}
    if single.is_file():
        raise ModelError(f"{folder} has both {SINGLE} and {INDEX}; remove the one that does not belong")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        promised: dict[Path, set[str]] = {}
        for name, shard in weight_map.items():
            promised.setdefault(folder / shard, set()).add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} has no readable weight_map ({error}); download it again") from None
    for file in promised:
        if not file.is_file():
            raise ModelError(f"shard {file.name} named by {INDEX} is not in {folder}; download it again")
    if not promised:
        raise ModelError(f"{index} names no tensor; download it again")
    return promised


def _what_instead(folder: Path) -> str:
    for pattern in ("*.gguf", "*.bin", "*.pt", "*.pth"):
        found = sorted(folder.glob(pattern))
        if found:
            return f"{found[0].name} is not supported, only safetensors; convert it or use the original checkpoint"
    return f"neither {SINGLE} nor {INDEX} is there (--dummy-weights runs a config without weights)"


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} cannot be read as safetensors ({error}); download it again") from None
