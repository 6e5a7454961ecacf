"""Log-probabilities of prompt tokens, from the hidden states of a prefill that ran every layer for every row.

Logits are made for a bounded number of rows at a time. Knows chunks and hidden states; nothing of requests.

B chunks, Q rows of the longest, D hidden, R scored rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.model.decoder import Decoder
from frostline.runner.logprobs import TokenScores, score_tokens
from frostline.runner.transfer import Results, to_device
from frostline.speculative.step import PrefillChunk, PromptLogprobs, TokenLogprobs

# Logits held at once: 2^25 float32 are 134 MB, 128 rows of a vocabulary of 262,144.
MAX_LOGITS = 2**25


@dataclass(frozen=True, kw_only=True)
class ScoredPrompt:
    """Scores of the chunks' rows, one after another, on their way to the host."""

    chunks: tuple[PrefillChunk, ...]
    results: Results

    def read(self) -> list[PromptLogprobs]:
        entries = iter(token_logprobs(self.results.read()))
        return [
            PromptLogprobs(row=chunk.row, start=chunk.start + 1, tokens=tuple(next(entries) for _ in _followers(chunk)))
            for chunk in self.chunks
        ]


def score_prompt(
    target: Decoder, hidden_BQD: Tensor, chunks: tuple[PrefillChunk, ...], *, max_logits: int = MAX_LOGITS
) -> ScoredPrompt | None:
    """Every row's successor, where it is known; None when the chunks have no such row."""
    width, device = int(hidden_BQD.shape[1]), hidden_BQD.device
    places = [number * width + at for number, chunk in enumerate(chunks) for at in range(len(_followers(chunk)))]
    if not places:
        return None
    followers = [token for chunk in chunks for token in _followers(chunk)]
    top = max(chunk.prompt_logprobs or 0 for chunk in chunks)
    place_R, token_R = (to_device(ids, dtype=torch.int64, device=device) for ids in (places, followers))
    rows = max(1, max_logits // target.spec.vocab_size)
    flat_RD = hidden_BQD.flatten(0, 1)
    parts = [
        score_tokens(target.logits(flat_RD.index_select(0, place_R[at : at + rows])), token_R[at : at + rows], top)
        for at in range(0, len(places), rows)
    ]
    return ScoredPrompt(chunks=chunks, results=Results(*TokenScores.cat(parts)))


def token_logprobs(columns: Sequence[Sequence[object]]) -> list[TokenLogprobs]:
    """Host values of TokenScores, [R] and [R, k] as lists, row by row."""
    return [
        TokenLogprobs(logprob=logprob, rank=rank, top_ids=tuple(ids), top_logprobs=tuple(values))
        for logprob, rank, ids, values in zip(*columns, strict=True)
    ]


def _followers(chunk: PrefillChunk) -> tuple[int, ...]:
    """The tokens that follow the chunk's rows, as far as they are known."""
    return chunk.tokens[1:] if chunk.following is None else (*chunk.tokens[1:], chunk.following)
