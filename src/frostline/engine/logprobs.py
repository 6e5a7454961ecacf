"""Log-probabilities of a request: which chunks must score their prompt, and what the user reads in the end.

Knows requests and numbers; nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from frostline.speculative.step import PrefillChunk, PromptLogprobs, TokenLogprobs
from frostline.types import Logprob, SamplingParams

# Alternatives that a batch asks the device for: few sizes make few recordings, and each request takes its own.
_SIZES = (-1, 0, 5, 20)

Spell = Callable[[int], str | None]


@dataclass(kw_only=True)
class LogprobRecord:
    """What one request has been told so far. tokens: one entry per kept output id. prompt: by position, 1 and up."""

    params: SamplingParams
    prompt_ids: tuple[int, ...]
    tokens: list[TokenLogprobs] = field(default_factory=list)
    prompt: dict[int, TokenLogprobs] = field(default_factory=dict)

    def keep(self, entries: tuple[TokenLogprobs, ...] | None, count: int) -> None:
        """The first `count` entries of a run, which are those of the ids that are kept."""
        if self.params.logprobs is None:
            return
        if entries is None or len(entries) < count:
            raise AssertionError(f"{count} tokens were kept and {0 if entries is None else len(entries)} have entries")
        self.tokens.extend(entries[:count])

    def keep_prompt(self, found: PromptLogprobs) -> None:
        """A chunk's entries; of a resumed request's prompt nothing is new, and past the prompt nothing is wanted."""
        for position, entry in enumerate(found.tokens, start=found.start):
            if position < len(self.prompt_ids):
                self.prompt.setdefault(position, entry)

    def scored(self, chunk: PrefillChunk) -> PrefillChunk:
        """The chunk, asked to score its rows where this request still wants that."""
        wanted, end = self.params.prompt_logprobs, chunk.start + len(chunk.tokens)
        if wanted is None or chunk.start + 1 >= len(self.prompt_ids) or len(self.prompt) == len(self.prompt_ids) - 1:
            return chunk
        following = self.prompt_ids[end] if end < len(self.prompt_ids) else None
        return replace(chunk, prompt_logprobs=wanted, following=following)

    def outputs(
        self, output_ids: Iterable[int], spell: Spell, *, start: int = 0
    ) -> tuple[Mapping[int, Logprob], ...] | None:
        """One entry per output id, `start` being the number of the first; None when not asked for."""
        top = self.params.logprobs
        if top is None:
            return None
        pairs = zip(output_ids, self.tokens[start:], strict=True)
        return tuple(_readable(token, entry, top, spell) for token, entry in pairs)

    def total(self) -> float | None:
        """The sum of the output ids' own log-probabilities."""
        return None if self.params.logprobs is None else sum(entry.logprob for entry in self.tokens)

    def prompts(self, spell: Spell) -> tuple[Mapping[int, Logprob] | None, ...] | None:
        """One entry per prompt token. None for the first, and for what a request that ended early never scored."""
        top = self.params.prompt_logprobs
        if top is None:
            return None
        found = ((token, self.prompt.get(position)) for position, token in enumerate(self.prompt_ids))
        return tuple(None if entry is None else _readable(token, entry, top, spell) for token, entry in found)


def batch_size_of(wanted: Iterable[int | None]) -> int:
    """How many alternatives to ask for on behalf of requests that want these; -1 when none wants any entry."""
    most = max((-1 if count is None else count for count in wanted), default=-1)
    return next(size for size in _SIZES if size >= most)


def _readable(token: int, entry: TokenLogprobs, top: int, spell: Spell) -> dict[int, Logprob]:
    """The token itself, then the `top` most likely, it among them where it belongs there."""
    found = {token: Logprob(logprob=entry.logprob, rank=entry.rank, decoded_token=spell(token))}
    best = zip(entry.top_ids[:top], entry.top_logprobs[:top], strict=True)
    for rank, (other, logprob) in enumerate(best, start=1):
        if other != token:
            found[other] = Logprob(logprob=logprob, rank=rank, decoded_token=spell(other))
    return found
