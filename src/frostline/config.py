"""Frozen settings. Each component takes only its own part; "auto" is resolved before freezing.

Knows nothing of tensors, files or models.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from frostline.errors import ConfigError

DraftPosition = Literal["auto", "P", "P-1"]
DraftSampling = Literal["coupled", "argmax"]
Schedule = Literal["sync", "overlap"]

DEFAULT_STEPS = 4
MAX_STEPS = 8
MAX_TOPK = 8
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class DepthTable:
    """Draft depth by load. entries: (requests that iterate together, deepest draft), the first for 1 request.

    An entry holds from its number of requests up to the next entry's. The more requests share a forward, the more a
    rejected draft costs, so depths usually fall. Raises ConfigError, with the rule, for entries that are no such table.
    """

    entries: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        example = "write requests:depth pairs such as 1:6,8:4,32:2,64:0"
        sizes = [size for size, _ in self.entries]
        if not sizes:
            raise ConfigError(f"depth_table is empty; {example}")
        if sizes[0] != 1:
            raise ConfigError(f"depth_table must begin with the depth for 1 request, got {sizes[0]}; {example}")
        for before, after in pairwise(sizes):
            if after <= before:
                raise ConfigError(f"depth_table must name more requests with each entry, got {after} after {before}")
        for size, depth in self.entries:
            if not 0 <= depth <= MAX_STEPS:
                raise ConfigError(
                    f"depth_table: the depth for {size} requests must be 0 (no drafting) to {MAX_STEPS}, got {depth}"
                )

    @classmethod
    def parse(cls, text: str) -> DepthTable:
        """From "1:6,8:4,32:2,64:0". Raises ConfigError for text that is not pairs of whole numbers."""
        entries = []
        for part in text.split(","):
            size, colon, depth = (piece.strip() for piece in part.partition(":"))
            if not (colon and size.isdecimal() and depth.isdecimal()):
                raise ConfigError(
                    f"depth_table {text!r} is not understood at {part.strip()!r}; write requests:depth pairs with "
                    f"commas between, such as 1:6,8:4,32:2,64:0"
                )
            entries.append((int(size), int(depth)))
        return cls(entries=tuple(entries))

    @property
    def deepest(self) -> int:
        return max(depth for _, depth in self.entries)

    def depth(self, requests: int) -> int:
        """Deepest draft while so many requests iterate together; at least 1 of them."""
        return self.entries[bisect_right(self.entries, requests, key=lambda entry: entry[0]) - 1][1]

    def __str__(self) -> str:
        return ",".join(f"{size}:{depth}" for size, depth in self.entries)


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """How far and how wide to draft.

    num_steps: draft depth `K`, 0 (no drafting) to 8.
    topk: children kept per frontier node `k`, 1 to 8; 1 is a chain.
    num_draft_tokens: nodes `N` in one verify forward, root included, up to 64. None derives it: `K + 1` for a chain,
        as many nodes as the tree can have but at most 16 for a tree.
    draft_position: the constant rope position of the assistant's queries ("P", "P-1"); "auto" takes what the
        assistant's config records and otherwise measures both on live traffic.
    draft_sampling: "coupled" draws drafts with the target's own noise (Daliri, Musco, Suresh 2024, arXiv 2408.07978);
        "argmax" ignores the noise, as other engines do, and exists for comparison. Neither changes the output.
    depth_table: caps the depth by the number of requests that iterate together; None drafts num_steps at any load.

    Raises ConfigError, with the rule that was broken, for a combination that cannot be honoured.
    """

    num_steps: int = DEFAULT_STEPS
    topk: int = 1
    num_draft_tokens: int | None = None
    draft_position: DraftPosition = "auto"
    draft_sampling: DraftSampling = "coupled"
    depth_table: DepthTable | None = None

    def __post_init__(self) -> None:
        k_steps, width = self.num_steps, self.num_draft_tokens
        if not 0 <= k_steps <= MAX_STEPS:
            raise ConfigError(f"num_steps must be 0 (no drafting) to {MAX_STEPS}, got {k_steps}")
        if not 1 <= self.topk <= MAX_TOPK:
            raise ConfigError(f"topk must be 1 (chain) to {MAX_TOPK}, got {self.topk}")
        if self.depth_table is not None and self.depth_table.deepest > k_steps:
            raise ConfigError(
                f"depth_table {self.depth_table} asks for depth {self.depth_table.deepest} and num_steps is {k_steps}; "
                f"set num_steps={self.depth_table.deepest}, or lower the table"
            )
        if width is None:
            return
        if not 1 <= width <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"num_draft_tokens counts the root and must be 1 to {MAX_DRAFT_TOKENS}, got {width}")
        if self.topk == 1 and width != k_steps + 1:
            raise ConfigError(
                f"with topk 1 the draft is a chain and num_draft_tokens must be num_steps + 1 = {k_steps + 1}, got "
                f"{width}; leave it out or raise topk"
            )
        if width < k_steps + 1:
            raise ConfigError(
                f"num_draft_tokens must be at least num_steps + 1 = {k_steps + 1} so that one path of full depth "
                f"fits, got {width}"
            )
        if width > tree_capacity(k_steps, self.topk):
            raise ConfigError(
                f"num_steps {k_steps} and topk {self.topk} make at most {tree_capacity(k_steps, self.topk)} nodes, "
                f"root included; got num_draft_tokens {width}"
            )

    @classmethod
    def derive(
        cls,
        *,
        num_steps: int | None = None,
        topk: int | None = None,
        num_draft_tokens: int | None = None,
        draft_position: DraftPosition = "auto",
        draft_sampling: DraftSampling = "coupled",
        depth_table: DepthTable | None = None,
    ) -> SpeculativeConfig:
        """A config from what a user gave; None is "not given", and only what was not given is derived.

        topk: 1. num_steps: the deepest of depth_table; without one 4, or as deep as num_draft_tokens allows (`N - 1`
        for a chain, at most 4 for a tree).
        Raises ConfigError, with the rule, for given values that contradict each other.
        """
        branching = 1 if topk is None else topk
        steps = num_steps
        if steps is None and depth_table is not None:
            steps = depth_table.deepest
        if steps is None and num_draft_tokens is not None:
            deepest = max(num_draft_tokens - 1, 0)
            steps = deepest if branching == 1 else min(DEFAULT_STEPS, deepest)
        return cls(
            num_steps=DEFAULT_STEPS if steps is None else steps,
            topk=branching,
            num_draft_tokens=num_draft_tokens,
            draft_position=draft_position,
            draft_sampling=draft_sampling,
            depth_table=depth_table,
        )

    def without_drafts(self) -> SpeculativeConfig:
        """Plain decoding with everything else as here."""
        return replace(self, num_steps=0, topk=1, num_draft_tokens=None, depth_table=None)

    @property
    def verify_width(self) -> int:
        """`N`: nodes per request in one verify forward, root included."""
        if self.num_draft_tokens is not None:
            return self.num_draft_tokens
        if self.topk == 1:
            return self.num_steps + 1
        return min(max(16, self.num_steps + 1), tree_capacity(self.num_steps, self.topk))


def tree_capacity(num_steps: int, topk: int) -> int:
    """Nodes that a tree of this depth and branching proposes, root included: 1 + k + (K - 1) k^2."""
    return 1 if num_steps == 0 else 1 + topk + (num_steps - 1) * topk * topk


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of the engine.

    max_num_seqs: requests that run at once. max_model_len: tokens per request, prompt included; None takes the
    model's own. max_prefill_tokens: prompt tokens per tick. page_size: KV rows per page. kv_pages: pages per layer
    group; None sizes them for max_num_seqs requests of max_model_len, within a memory bound. sliding_kv_pages: pages of
    the sliding group, which needs few: a window per request; None takes kv_pages, or sizes them too. prefix_cache: keep
    what was computed while its pages are not needed, for prompts that begin alike. schedule: "sync" reads a step before
    the next is scheduled, "overlap" launches the next before it reads (engine.loop). capture_after: uses of a batch
    shape before its iteration is recorded and replayed without Python (runner.graphs); "auto" is 2 on a GPU and 64 on a
    CPU, None never records. The tokens are the same, whatever these three are.
    """

    max_num_seqs: int = 64
    max_model_len: int | None = None
    max_prefill_tokens: int = 2048
    page_size: int = 16
    kv_pages: int | None = None
    sliding_kv_pages: int | None = None
    prefix_cache: bool = True
    schedule: Schedule = "overlap"
    capture_after: int | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_prefill_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        after = self.capture_after
        if after is not None and after != "auto" and not (isinstance(after, int) and after >= 0):
            raise ConfigError(f"capture_after must be 'auto', 0 or more, or None to never record, got {after!r}")
        for name in ("max_model_len", "kv_pages", "sliding_kv_pages"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise ConfigError(f"{name} must be at least 2, got {value}")
        if self.schedule not in get_args(Schedule):
            raise ConfigError(f"schedule must be 'sync' or 'overlap', got {self.schedule!r}")
