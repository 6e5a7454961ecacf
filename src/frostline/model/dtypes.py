"""Names of dtypes, as users write them, to torch dtypes."""

from __future__ import annotations

import torch

from frostline.errors import ConfigError

_BY_NAME = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def resolve_dtype(name: str, *, config_dtype: str, device: torch.device | str) -> torch.dtype:
    """torch dtype of 'float32', 'bfloat16', 'float16', 'float64' or 'auto'.

    'auto' is float32 on a CPU, where narrow types are slow, and the checkpoint's own (`config_dtype`) elsewhere.
    Raises ConfigError for any other name.
    """
    if name == "auto":
        name = "float32" if torch.device(device).type == "cpu" else config_dtype
    dtype = _BY_NAME.get(name.removeprefix("torch."))
    if dtype is None:
        raise ConfigError(f"dtype must be auto, {', '.join(_BY_NAME)}, got {name!r}")
    return dtype
