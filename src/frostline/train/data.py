"""Token streams on the training device: documents shuffled and packed without gaps, batches gathered there.

Reads what corpus.py writes (its docstring has the layout). Knows token ids of the turn marks and nothing of models.

N tokens of a stream, M documents, B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from frostline.errors import ConfigError
from frostline.train.tokenizer import SPECIAL_IDS

TURN_OPEN, TURN_CLOSE = SPECIAL_IDS["<|turn>"], SPECIAL_IDS["<turn|>"]
QUIET_WEIGHT = 0.3
Tokens = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents on the host. tokens uint16 [N]; offsets int64 [M + 1]; quiet bool [N]: what the model need not say."""

    tokens: Tokens
    offsets: npt.NDArray[np.int64]
    quiet: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def select(self, chosen: npt.NDArray[np.int64]) -> Documents:
        """The documents of these indices, in this order."""
        spans = [slice(self.offsets[i], self.offsets[i + 1]) for i in chosen]
        return join([Documents(tokens=self.tokens[s], offsets=_ends([s]), quiet=self.quiet[s]) for s in spans])


def corpus_kinds(corpus: Path) -> tuple[str, ...]:
    """Kinds of text of a corpus folder that have documents. Raises ConfigError when there is no corpus."""
    index = corpus / "index.json"
    if not index.is_file():
        raise ConfigError(
            f"no corpus in {corpus} (index.json is missing): build it first with `frostline train corpus`"
        )
    kinds = json.loads(index.read_text(encoding="utf-8"))["kinds"]
    return tuple(kind for kind, splits in kinds.items() if splits["train"]["documents"])


def load_documents(corpus: Path, kind: str, split: str, *, opening: Sequence[int]) -> Documents:
    """One kind and split. opening: token ids of `<|turn>model` and its newline, which begin a model turn."""
    tokens = np.load(corpus / f"{kind}-{split}.npy")
    offsets = np.load(corpus / f"{kind}-{split}.offsets.npy").astype(np.int64)
    return Documents(tokens=tokens, offsets=offsets, quiet=quiet_tokens(tokens, opening[1]))


def quiet_tokens(tokens: Tokens, model_role: int) -> npt.NDArray[np.bool_]:
    """True for tokens of turns that are not the model's, from the token after `<|turn>` to `<turn|>`.

    model_role: the first token of the word "model", which no other role's name begins with.
    """
    place = np.arange(len(tokens))
    opened = np.maximum.accumulate(np.where(tokens == TURN_OPEN, place, -1))
    closed = np.maximum.accumulate(np.where(tokens == TURN_CLOSE, place, -1))
    # The closing mark itself still belongs to its turn.
    closed = np.concatenate(([-1], closed[:-1])) if len(tokens) else closed
    role = tokens[np.minimum(opened + 1, len(tokens) - 1)] if len(tokens) else tokens
    quiet: npt.NDArray[np.bool_] = (opened > closed) & (place > opened) & (role != model_role)
    return quiet


def join(parts: Sequence[Documents]) -> Documents:
    """All documents of all parts, in order."""
    shifts = np.cumsum([0, *(len(p.tokens) for p in parts)])
    ends = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=False)]
    return Documents(
        tokens=np.concatenate([p.tokens for p in parts]),
        offsets=np.concatenate([np.zeros(1, np.int64), *ends]),
        quiet=np.concatenate([p.quiet for p in parts]),
    )


def from_sequences(sequences: Iterable[tuple[Sequence[int], int]]) -> Documents:
    """Documents from (tokens, prompt length) pairs; the prompt is quiet."""
    rows = list(sequences)
    quiet = [np.arange(len(tokens)) < prompt for tokens, prompt in rows]
    lengths = [len(tokens) for tokens, _ in rows]
    return Documents(
        tokens=np.concatenate([np.asarray(tokens, dtype=np.uint16) for tokens, _ in rows]),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        quiet=np.concatenate(quiet),
    )


def prompt_length(document: Tokens, opening: Sequence[int], prose: int = 32) -> int:
    """Tokens before the last model turn's text, its opening included; for prose the first `prose` tokens."""
    width = len(opening)
    if len(document) > width:
        windows = np.lib.stride_tricks.sliding_window_view(document, width)
        turns = np.flatnonzero((windows == np.asarray(opening, dtype=np.uint16)).all(axis=1))
        if len(turns):
            return int(turns[-1]) + width
    return min(prose, len(document) - 1)


class Packer:
    """Endless batches of packed rows. Each epoch shuffles the documents anew; everything stays on the device."""

    def __init__(self, documents: Documents, *, batch_tokens: int, device: torch.device, seed: int) -> None:
        self._tokens = torch.from_numpy(documents.tokens.astype(np.int32)).to(device)
        self._quiet = torch.from_numpy(documents.quiet).to(device)
        offsets = torch.from_numpy(documents.offsets).to(device)
        self._starts, self._lengths = offsets[:-1], offsets.diff()
        self._batch_tokens, self._device = batch_tokens, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._length = self._rows = self._row = 0
        self.epochs = 0

    def draw(self, length: int) -> tuple[Tensor, Tensor]:
        """(tokens [B, length + 1] int64, loss weight of each of them as a prediction, float32)."""
        size = max(1, self._batch_tokens // length)
        if length != self._length or self._row + min(size, self._rows) > self._rows:
            self._shuffle(length)
        size = min(size, self._rows)
        rows = self._order[self._row : self._row + size]
        self._row += size
        place = rows.unsqueeze(1) * length + torch.arange(length + 1, device=self._device)
        tokens, quiet = self._packed[place], self._packed_quiet[place]
        weight = torch.where(quiet, QUIET_WEIGHT, 1.0)
        return tokens.long(), weight

    def _shuffle(self, length: int) -> None:
        order = torch.randperm(len(self._lengths), generator=self._generator, device=self._device)
        lengths = self._lengths[order]
        shift = self._starts[order] - (lengths.cumsum(0) - lengths)
        total = len(self._tokens)
        place = shift.repeat_interleave(lengths, output_size=total) + torch.arange(total, device=self._device)
        self._packed, self._packed_quiet = self._tokens[place], self._quiet[place]
        self._length, self._row, self._rows = length, 0, (total - 1) // length
        if self._rows < 1:
            raise ConfigError(f"the training text has {total} tokens, too few for one row of {length}")
        self._order = torch.randperm(self._rows, generator=self._generator, device=self._device)
        self.epochs += 1


def _ends(spans: list[slice]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *(s.stop - s.start for s in spans)]).astype(np.int64)
