"""What the commands count and time: modes to compare, counters summed over requests, one timed call.

Knows the engine only as something that generates; no tensors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frostline.cli.loading import Generator, Prompt
from frostline.config import SpeculativeConfig
from frostline.errors import ConfigError
from frostline.types import RequestOutput, SamplingParams, SpecStats

MODES = ("plain", "chain", "tree")
DEFAULT_TREE_TOPK = 2


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What requests came to together: their number, all their tokens, and the sums of their counters."""

    requests: int
    tokens: int
    stats: SpecStats

    @classmethod
    def of(cls, outputs: Iterable[RequestOutput]) -> Totals:
        done = list(outputs)
        return cls(
            requests=len(done),
            tokens=sum(len(completion.token_ids) for output in done for completion in output.outputs),
            stats=SpecStats.total([output.stats for output in done]),
        )

    @property
    def acceptance_per_depth(self) -> tuple[float, ...]:
        """Share of the runs that offered a draft at this depth in which it was accepted; depth 1 first."""
        pairs = zip(self.stats.accepted_per_depth, self.stats.drafted_per_depth, strict=True)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "iterations": self.stats.iterations,
            "drafted": self.stats.drafted,
            "accept_length": round(self.stats.accept_length, 4),
            "acceptance_per_depth": [round(rate, 4) for rate in self.acceptance_per_depth],
            "drafted_per_depth": list(self.stats.drafted_per_depth),
            "accepted_per_depth": list(self.stats.accepted_per_depth),
        }


def modes_of(names: Sequence[str], config: SpeculativeConfig) -> dict[str, SpeculativeConfig]:
    """The config of each mode: the user's depth, and the user's branching for the tree (2 where it was a chain).

    Raises ConfigError for an unknown name, or a drafting mode where drafting is switched off.
    """
    chosen: dict[str, SpeculativeConfig] = {}
    for name in names:
        if name not in MODES:
            raise ConfigError(f"unknown mode {name!r}; modes are {', '.join(MODES)}")
        if name == "plain":
            chosen[name] = config.without_drafts()
            continue
        if config.num_steps == 0:
            raise ConfigError(f"mode {name} drafts and drafting is switched off; leave it out or allow drafts")
        if name == "chain":
            chosen[name] = replace(config, topk=1, num_draft_tokens=None)
        else:
            tree = replace(config, topk=DEFAULT_TREE_TOPK, num_draft_tokens=None)
            chosen[name] = config if config.topk > 1 else tree
    return chosen


def read_modes(text: str | None, *, drafting: bool) -> list[str]:
    """The modes to run; plain alone when nothing drafts and none were named."""
    if text is None:
        return list(MODES) if drafting else ["plain"]
    return [part.strip() for part in text.split(",") if part.strip()]


def read_numbers(text: str, option: str) -> list[int]:
    """ "1,8" to [1, 8]; raises ConfigError for anything that is not a list of positive numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} must be positive numbers with commas between, such as 1,8; got {text!r}")
    return [int(part) for part in parts]


def widest(configs: Iterable[SpeculativeConfig]) -> SpeculativeConfig:
    """The config to load a pair with when it shall then run all of these."""
    return max(configs, key=lambda config: config.verify_width)


def timed(generator: Generator, prompts: Sequence[Prompt], params: SamplingParams) -> tuple[list[RequestOutput], float]:
    """Outputs, and the seconds from the call to the last token, prefill included."""
    start = time.perf_counter()
    outputs = generator.generate(prompts, params, use_tqdm=False)
    return outputs, time.perf_counter() - start
