"""What a checkpoint's generation_config.json says: where text ends, what is never emitted, how to sample by default.

Knows that one file; config.json has its own reader, and its end-of-text ids are only the fallback of these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frostline.errors import ConfigError, ModelError
from frostline.types import SamplingParams

FILE = "generation_config.json"


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """eos_token_ids: empty when the file names none. suppress_token_ids: tokens that are never emitted.

    sampling: what a request without parameters gets.
    """

    eos_token_ids: tuple[int, ...] = ()
    suppress_token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @classmethod
    def load(cls, folder: Path) -> GenerationDefaults:
        """From a checkpoint folder; without the file the defaults. Raises ModelError for one that cannot be used."""
        path = folder / FILE
        if not path.is_file():
            return cls()
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} is not readable JSON: {error}; download it again or remove it") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path} must hold a JSON object; download it again or remove it")
        try:
            return cls.from_values(values)
        except (ConfigError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: {error}; correct it or remove it") from error

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> GenerationDefaults:
        """`do_sample: false` is greedy; a key that is absent or null keeps the default of SamplingParams."""
        names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
        given = {ours: values[theirs] for theirs, ours in names.items() if values.get(theirs) is not None}
        if values.get("do_sample") is False:
            given = {"temperature": 0.0}
        if values.get("max_new_tokens") is not None:
            given["max_tokens"] = int(values["max_new_tokens"])
        if values.get("repetition_penalty") is not None:
            given["repetition_penalty"] = float(values["repetition_penalty"])
        return cls(
            eos_token_ids=_ids(values.get("eos_token_id")),
            suppress_token_ids=_ids(values.get("suppress_tokens")),
            sampling=SamplingParams(**given),
        )


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(i) for i in value) if isinstance(value, list | tuple) else (int(value),)
