"""What the engine hands to the device side for one tick, and what it gets back. Host values, no torch.

A Step is immutable and complete: the device side reads nothing else of the engine, so a launched step cannot be changed
by bookkeeping that runs beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from frostline.runner.rules import LogitRules
from frostline.speculative.plan import Plan
from frostline.types import Group


@dataclass(frozen=True, kw_only=True)
class RowInit:
    """Admission of a request into a device row; row 0 is padding and never admitted.

    depth: the row's own depth. rules: what its options do to logits, None when they do nothing.
    """

    row: int
    prompt_len: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    depth: int
    rules: LogitRules | None = None


@dataclass(frozen=True, kw_only=True)
class Scrub:
    """What a request left that failed on numbers that are not finite: its row's hidden state and these pages, zeroed.

    Zero times NaN, under a mask, would reach the next owner. A page that others still use comes when the last lets go.
    """

    row: int
    pages: Mapping[Group, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TableWrite:
    """Entries of a row's page table of one group, from index `start`: pages given to it, or page 0 for evicted ones."""

    row: int
    group: Group
    start: int
    pages: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PageCopy:
    """The first `rows` KV rows of page `source`, in every layer of the group, are copied to page `destination`."""

    group: Group
    source: int
    destination: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class PrefillChunk:
    """Known tokens for KV rows `[start, start + len(tokens))`. After the last chunk the row is seeded.

    bonus: on the last chunk of a request that resumes, the token after it, which the user has already: the row is
    seeded with it and nothing is sampled. None samples the row's first token.
    prompt_logprobs: score the token after every row, with this many most likely ones; None scores nothing. following:
    the prompt's token after the chunk, when it is scored and there is one.
    """

    row: int
    start: int
    tokens: tuple[int, ...]
    last: bool
    bonus: int | None = None
    prompt_logprobs: int | None = None
    following: int | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One tick of device work, done in this order: scrub, inits, tables, copies, prefill, one iteration over `rows`.

    A row is never in `prefill` and `rows` of the same step. kv_bound: at least `P + N` of every row in `rows`.
    """

    scrub: tuple[Scrub, ...] = ()
    inits: tuple[RowInit, ...] = ()
    tables: tuple[TableWrite, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    rows: tuple[int, ...] = ()
    plan: Plan
    kv_bound: int = 0


@dataclass(frozen=True, kw_only=True)
class DraftNodes:
    """The drafted tree of one row as verify saw it, root first: what the drafting oracle compares."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """One token's log-probability and rank under the raw logits, and the most likely tokens in descending order."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PromptLogprobs:
    """Entries of a row's prompt tokens at positions `start` and up, from one chunk."""

    row: int
    start: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Tokens that one iteration committed for a row; the last is the new bonus. drafted: depth offered to this row.

    finite: False when the row's logits held NaN; its tokens mean nothing then. logprobs: one entry per token, when the
    plan asked for them.
    """

    row: int
    tokens: tuple[int, ...]
    drafted: int
    finite: bool
    nodes: DraftNodes | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """First token of a row, from its last chunk's logits, or the chunk's `bonus` where it had one.

    finite: False when the chunk's numbers were not; it comes with any chunk then, and the token means nothing.
    """

    row: int
    token: int
    finite: bool
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    seeds: tuple[SeedResult, ...]
    runs: tuple[RunResult, ...]
    prompts: tuple[PromptLogprobs, ...] = ()


class Executor(Protocol):
    """The device side. In-flight work is a value: `launch` returns it and `collect` takes it.

    num_pages: by group, page 0 included. window: `W` of the sliding group; a query at position q reads the rows k with
    `q - k < W`, and drafting reads as from position `P - 1`.
    """

    num_rows: int
    page_size: int
    num_pages: Mapping[Group, int]
    window: int
    max_context: int
    verify_width: int

    def launch(self, step: Step) -> Any:
        """Start the step's device work."""
        ...

    def collect(self, flight: Any) -> StepResult:
        """Wait for a launched step and read its result; the only place where the host waits for the device."""
        ...


class AroundExecutor:
    """What an Executor around another one has of it: its sizes."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.num_rows, self.page_size = inner.num_rows, inner.page_size
        self.num_pages: Mapping[Group, int] = inner.num_pages
        self.window, self.max_context, self.verify_width = inner.window, inner.max_context, inner.verify_width
