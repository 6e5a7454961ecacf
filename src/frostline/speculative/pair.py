"""A target and its assistant on one device, as the iteration uses them, and how a pair is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from frostline.errors import ConfigError
from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder
from frostline.model.dtypes import resolve_dtype
from frostline.model.dummy import dummy_assistant, dummy_target
from frostline.model.loader import load_assistant, load_target
from frostline.model.pair import check_pair
from frostline.model.resolve import find_draft, resolve_model
from frostline.model.spec import assistant_spec, read_config, target_spec


@dataclass(frozen=True, kw_only=True)
class Pair:
    """assistant None: plain decoding only."""

    target: Decoder
    assistant: Assistant | None


def load_pair(model: str, draft: str, *, device: str, dtype: str, dummy_weights: bool = False) -> Pair:
    """Load a target and, unless draft is "none" or "auto" finds none, its assistant, after checking that they fit."""
    place = torch.device(resolve_device(device))
    folder = resolve_model(model, weights=not dummy_weights)
    spec = target_spec(read_config(folder))
    chosen = resolve_dtype(dtype, config_dtype=spec.dtype, device=place)
    draft_folder = find_draft(model, draft, weights=not dummy_weights)
    drafter = None if draft_folder is None else assistant_spec(read_config(draft_folder))
    if drafter is not None:
        check_pair(spec, drafter, target_folder=folder, assistant_folder=draft_folder)
    assistant = None
    if dummy_weights:
        target = dummy_target(spec, dtype=chosen, device=place)
        if drafter is not None:
            assistant = dummy_assistant(drafter, spec, dtype=chosen, device=place).eval()
    else:
        target = load_target(folder, dtype=chosen, device=place)
        if draft_folder is not None:
            assistant = load_assistant(draft_folder, spec, dtype=chosen, device=place).eval()
    return Pair(target=target.eval(), assistant=assistant)


def resolve_device(name: str) -> str:
    """ "auto" is a GPU where there is one. Raises ConfigError for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ConfigError(f"device {name!r} is not known; use cpu, cuda or cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: this machine has no CUDA GPU that torch can use; use --device cpu")
    return name
