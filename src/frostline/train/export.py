"""Writes the trained pair as Hugging Face folders: weights in bfloat16, configs, tokenizer; and reads them back.

Knows file names, not how the weights came to be.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from frostline.errors import ConfigError
from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.model.export import save_assistant, save_target

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_target(
    decoder: Decoder,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    folder: Path,
    *,
    tokenizer: Path | None = None,
) -> None:
    """A target's folder. tokenizer: folder whose tokenizer files are copied beside the weights."""
    save_target(decoder, config, folder, dtype=torch.bfloat16)
    _write_generation(generation, folder)
    if tokenizer is not None:
        copy_tokenizer(tokenizer, folder)


def write_assistant(
    assistant: Assistant, config: Mapping[str, Any], generation: Mapping[str, Any], folder: Path
) -> None:
    """An assistant's folder; it has no tokenizer of its own, the target's is the one."""
    save_assistant(assistant, config, folder, dtype=torch.bfloat16)
    _write_generation(generation, folder)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy tokenizer and chat template unless they lie there already. Raises ConfigError when one is missing."""
    for name in TOKENIZER_FILES:
        if not (source / name).is_file():
            raise ConfigError(f"no {name} in {source}: train the tokenizer first (`frostline train corpus`)")
        if (source / name).resolve() != (folder / name).resolve():
            shutil.copyfile(source / name, folder / name)


def folder_bytes(*folders: Path) -> int:
    """Size of all files in these folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.iterdir() if path.is_file())


def _write_generation(generation: Mapping[str, Any], folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps(dict(generation), indent=2) + "\n", encoding="utf-8")
