"""Frostline serves Gemma 4 with Frozen-KV multi-token prediction. The public names are imported when first used.

So `import frostline` takes no time and loads no torch, and neither does a command that only prints help.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frostline.config import DepthTable, EngineConfig, SpeculativeConfig
    from frostline.engine.stats import EngineStats
    from frostline.engine.timeline import Timeline
    from frostline.errors import ConfigError, FrostlineError, ModelError, PairError, RequestError
    from frostline.llm import LLM
    from frostline.types import CompletionOutput, Logprob, RequestOutput, SamplingParams, SpecStats, StreamOutput

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "DepthTable",
    "EngineConfig",
    "EngineStats",
    "FrostlineError",
    "Logprob",
    "ModelError",
    "PairError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SpecStats",
    "SpeculativeConfig",
    "StreamOutput",
    "Timeline",
    "__version__",
]

_HOMES = {
    "frostline.config": ("DepthTable", "EngineConfig", "SpeculativeConfig"),
    "frostline.engine.stats": ("EngineStats",),
    "frostline.engine.timeline": ("Timeline",),
    "frostline.errors": ("ConfigError", "FrostlineError", "ModelError", "PairError", "RequestError"),
    "frostline.llm": ("LLM",),
    "frostline.types": ("CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "SpecStats", "StreamOutput"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
