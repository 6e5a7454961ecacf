"""From the name that a user gives to a folder: a local folder, a bundled model, or a download from the hub.

Knows no tensors and reads no model.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from frostline.errors import ModelError

_log = logging.getLogger(__name__)

ASSISTANT_SUFFIX = "-assistant"

_BUNDLED = "frostline/"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
_WEIGHTS = ["*.safetensors"]


def resolve_model(name: str | Path, *, weights: bool = True) -> Path:
    """Folder of a model: `name` itself when it is a folder, a bundled `frostline/...`, else the hub's `owner/name`.

    weights=False leaves safetensors out of a download. Raises ModelError in one line when there is no such model, it is
    gated, or the hub cannot be reached and nothing is in its cache.
    """
    if not str(name):
        # Path would take it for the working folder.
        raise ModelError("the model name is empty; give a local folder, a hub name (owner/name), or frostline/tiny")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(f"{name} is a file; give the folder that holds config.json and the safetensors files")
    text = str(name)
    if text.startswith(_BUNDLED):
        from frostline.bundled import bundled_path

        return bundled_path(text)
    if not _HUB_NAME.fullmatch(text):
        raise ModelError(f"no folder {text}; give a local folder, a hub name (owner/name), or frostline/tiny")
    return _download(text, weights=weights)


def find_draft(target: str | Path, draft: str, *, weights: bool = True) -> Path | None:
    """Folder of the assistant: None for draft "none", the model of that name, or for "auto" `<target>-assistant`.

    "auto" looks next to a local target and on the hub beside a hub target, and returns None, with a warning that says
    where it looked, when there is none. `target` is the name the user gave or the folder that it resolved to.
    """
    if draft == "none":
        return None
    if draft != "auto":
        return resolve_model(draft, weights=weights)
    name = _hub_name(target) or str(target).rstrip("/")
    try:
        path = Path(name).expanduser()
        beside = path.resolve().with_name(path.resolve().name + ASSISTANT_SUFFIX) if path.is_dir() else None
        return resolve_model(beside or name + ASSISTANT_SUFFIX, weights=weights)
    except ModelError as error:
        _log.warning("no assistant for %s, decoding without drafts: %s", target, error)
        return None


def _hub_name(target: str | Path) -> str | None:
    """owner/name of a folder in the hub's cache (models--owner--name/snapshots/REVISION), else None."""
    path = Path(target).expanduser()
    if path.parent.name != "snapshots" or not path.parent.parent.name.startswith("models--"):
        return None
    return path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)


def _download(name: str, *, weights: bool) -> Path:
    # Imported here: a local folder needs neither the package nor its second of import time.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    patterns = _SMALL_FILES + (_WEIGHTS if weights else [])
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError:
        raise ModelError(f"{name} is gated: accept its terms on huggingface.co, then run `hf auth login`") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{name} is neither a local folder nor a model on the hub (or it is private)") from None
    except LocalEntryNotFoundError:
        raise ModelError(
            f"{name} is not a local folder, not in the hub's cache, and the hub cannot be reached; give a local folder"
        ) from None
    except (EntryNotFoundError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{name} could not be downloaded ({reason}); give a local folder") from None
