"""Penalties, biases and masks on the device: what options do to logits before temperature and filters.

What it is for: giving each node of a tree the logits that plain decoding would give at its place. The counts hold the
request's output, root of the tree (the bonus token) included; a node below it adds the tokens of its own path. Drafts
go through the same rules, so that they meet what verification will do. What it does not know: trees, requests, where
logits come from.

The state exists from the first request that needs it on; batches that do not need it neither read nor write it.

Legend: R rows, B batch, N nodes of a row, A tokens that may be above a node, V vocabulary, C candidate tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from frostline.runner.rules import NEVER, LogitRules, RuleFeatures
from frostline.runner.transfer import to_device


class Paths(NamedTuple):
    """Tokens above each node that the counts do not have yet: ids [B, N, A], and which of them count [B, N, A] bool."""

    token: Tensor
    counts: Tensor


class Penalties(NamedTuple):
    """frequency, presence, repetition [R]; counts [R, V] int32 of output tokens; in_prompt [R, V] bool."""

    frequency: Tensor
    presence: Tensor
    repetition: Tensor
    counts: Tensor
    in_prompt: Tensor

    @classmethod
    def empty(cls, num_rows: int, vocab_size: int, *, dtype: torch.dtype, device: torch.device) -> Penalties:
        return cls(
            frequency=torch.zeros(num_rows, dtype=dtype, device=device),
            presence=torch.zeros(num_rows, dtype=dtype, device=device),
            repetition=torch.ones(num_rows, dtype=dtype, device=device),
            counts=torch.zeros(num_rows, vocab_size, dtype=torch.int32, device=device),
            in_prompt=torch.zeros(num_rows, vocab_size, dtype=torch.bool, device=device),
        )

    def write(self, row: int, rules: LogitRules) -> None:
        """A request's penalties and what they look at; the neutral LogitRules leave logits as they are."""
        # By fill_: assigning a number to an element would make the host wait for a GPU.
        self.frequency[row].fill_(rules.frequency)
        self.presence[row].fill_(rules.presence)
        self.repetition[row].fill_(rules.repetition)
        self.counts[row].zero_()
        self.in_prompt[row].zero_()
        if not rules.has_penalties:
            return
        prompt, output = (
            to_device(ids, dtype=torch.int64, device=self.counts.device) for ids in (rules.prompt_ids, rules.output_ids)
        )
        self.in_prompt[row].index_fill_(0, prompt, True)
        self.counts[row].scatter_add_(0, output, torch.ones_like(output, dtype=torch.int32))


@dataclass(kw_only=True)
class RuleState:
    """The rules of every row. Each part is made when a request first needs it; rows without rules are neutral in it.

    bias [R, V] in the logit dtype. earliest [R, V] int32: the first absolute position where a token may be emitted.
    """

    num_rows: int
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    penalties: Penalties | None = None
    bias: Tensor | None = None
    earliest: Tensor | None = None

    def __post_init__(self) -> None:
        self._written: dict[int, RuleFeatures] = {}

    def admit(self, row: int, rules: LogitRules | None) -> None:
        """Write a new request's rules over those of the row's last one."""
        rules = rules or LogitRules()
        needed = rules.features
        written = needed | self._written.pop(row, RuleFeatures())
        self._need(needed)
        if written.penalties and self.penalties is not None:
            self.penalties.write(row, rules)
        if written.bias and self.bias is not None:
            self.bias[row].zero_()
            self._put(self.bias[row], rules.bias)
        if written.masks and self.earliest is not None:
            self.earliest[row].fill_(0 if rules.allowed is None else NEVER)
            self._put(self.earliest[row], [(token, 0) for token in rules.allowed or ()])
            # After the allowed ones: a token may be allowed and still have to wait, or be suppressed.
            allowed = None if rules.allowed is None else frozenset(rules.allowed)
            self._put(self.earliest[row], [pair for pair in rules.earliest if allowed is None or pair[0] in allowed])
        if needed.any:
            self._written[row] = needed

    def count(self, rows_B: Tensor, token_BT: Tensor, counts_BT: Tensor) -> None:
        """Add emitted tokens to the output counts of their rows, where `counts_BT` is True; no penalties, no counts."""
        if self.penalties is None:
            return
        real_BT = counts_BT & (rows_B > 0).unsqueeze(1)
        slot_BT = rows_B.unsqueeze(1) * self.vocab_size + token_BT
        self.penalties.counts.view(-1).scatter_add_(0, slot_BT.flatten(), real_BT.flatten().to(torch.int32))

    def tensors(self, features: RuleFeatures) -> tuple[Tensor, ...]:
        """The state that a batch with these features reads and writes, flat."""
        part = self._part(features)
        penalties = () if part.penalties is None else tuple(part.penalties)
        return (*penalties, *(tensor for tensor in (part.bias, part.earliest) if tensor is not None))

    def over(self, features: RuleFeatures, tensors: Sequence[Tensor]) -> RuleState:
        """The inverse of `tensors` for these features: how a recording takes its state as arguments."""
        rest = iter(tensors)
        state = self._bare()
        if features.penalties:
            state.penalties = Penalties(*islice(rest, len(Penalties._fields)))
        if features.bias:
            state.bias = next(rest)
        if features.masks:
            state.earliest = next(rest)
        return state

    def _part(self, features: RuleFeatures) -> RuleState:
        self._need(features)
        state = self._bare()
        state.penalties = self.penalties if features.penalties else None
        state.bias = self.bias if features.bias else None
        state.earliest = self.earliest if features.masks else None
        return state

    def _bare(self) -> RuleState:
        return RuleState(num_rows=self.num_rows, vocab_size=self.vocab_size, dtype=self.dtype, device=self.device)

    def _need(self, features: RuleFeatures) -> None:
        shape = self.num_rows, self.vocab_size
        if features.penalties and self.penalties is None:
            self.penalties = Penalties.empty(*shape, dtype=self.dtype, device=self.device)
        if features.bias and self.bias is None:
            self.bias = torch.zeros(shape, dtype=self.dtype, device=self.device)
        if features.masks and self.earliest is None:
            self.earliest = torch.zeros(shape, dtype=torch.int32, device=self.device)

    def _put(self, row_V: Tensor, pairs: Sequence[tuple[int, float]]) -> None:
        if pairs:
            ids = to_device([token for token, _ in pairs], dtype=torch.int64, device=self.device)
            values = to_device([value for _, value in pairs], dtype=row_V.dtype, device=self.device)
            row_V.index_copy_(0, ids, values)


class Processor:
    """The rules of one batch, applied to logits of any of its nodes. Works in the dtype of the logits."""

    def __init__(self, state: RuleState, rows_B: Tensor, features: RuleFeatures) -> None:
        self._state, self._rows_B, self._features = state, rows_B, features
        self._penalties: tuple[Tensor, Tensor, Tensor] | None = None
        if features.penalties and state.penalties is not None:
            by_row = (state.penalties.frequency, state.penalties.presence, state.penalties.repetition)
            frequency, presence, repetition = (tensor.index_select(0, rows_B)[:, None, None] for tensor in by_row)
            self._penalties = frequency, presence, repetition

    def __call__(
        self, logits_BNC: Tensor, position_BN: Tensor, token_ids_BNC: Tensor | None, paths: Paths | None
    ) -> Tensor:
        """Processed logits [B, N, C]; what may not be emitted is -inf.

        position_BN: absolute position of the token that the logits are for. token_ids_BNC: what the candidates are,
        None stands for the vocabulary. paths: what was drafted above each node; None when no node is below a root.
        """
        out, state = logits_BNC, self._state
        if self._penalties is not None and state.penalties is not None:
            counts, in_prompt = (
                self._read(tensor, token_ids_BNC) for tensor in (state.penalties.counts, state.penalties.in_prompt)
            )
            if token_ids_BNC is not None and paths is not None:
                counts = counts + _among(token_ids_BNC, paths)
            out = _penalised(logits_BNC, counts, in_prompt, *self._penalties)
            if token_ids_BNC is None and paths is not None:
                self._correct(out, logits_BNC, counts, in_prompt, paths)
        if self._features.bias and state.bias is not None:
            out = out + self._read(state.bias, token_ids_BNC)
        if self._features.masks and state.earliest is not None:
            too_early = self._read(state.earliest, token_ids_BNC) > position_BN.unsqueeze(2)
            out = out.masked_fill(too_early, -torch.inf)
        return out

    def _read(self, state_RV: Tensor, token_ids_BNC: Tensor | None) -> Tensor:
        """The batch's rows, [B, 1, V], or at the candidates only, [B, N, C]."""
        if token_ids_BNC is None:
            return state_RV.index_select(0, self._rows_B).unsqueeze(1)
        return state_RV.take(self._rows_B[:, None, None] * self._state.vocab_size + token_ids_BNC)

    def _correct(
        self, out_BNV: Tensor, logits_BNV: Tensor, counts_B1V: Tensor, in_prompt_B1V: Tensor, paths: Paths
    ) -> None:
        """Penalise the tokens of the paths again, with the paths in their counts; they are few beside the vocabulary.

        A token that is not above a node gets the value that it has.
        """
        assert self._penalties is not None
        nodes = int(paths.token.shape[1])
        counts_BNA, in_prompt_BNA = (
            tensor.expand(-1, nodes, -1).gather(2, paths.token) for tensor in (counts_B1V, in_prompt_B1V)
        )
        counts_BNA = counts_BNA + _among(paths.token, paths)
        value_BNA = _penalised(logits_BNV.gather(2, paths.token), counts_BNA, in_prompt_BNA, *self._penalties)
        out_BNV.scatter_(2, paths.token, value_BNA)


def _penalised(
    logits: Tensor, counts: Tensor, in_prompt: Tensor, frequency: Tensor, presence: Tensor, repetition: Tensor
) -> Tensor:
    """Repetition penalty of Keskar et al. 2019 (arXiv 1909.05858) on seen tokens, then frequency and presence."""
    emitted = counts > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(in_prompt | emitted, scaled, logits) - (frequency * counts + presence * emitted)


def _among(token_ids_BNC: Tensor, paths: Paths) -> Tensor:
    """How often each candidate is among its node's path, [B, N, C] int32."""
    found = torch.zeros_like(token_ids_BNC, dtype=torch.int32)
    for above in range(int(paths.token.shape[2])):
        same = token_ids_BNC == paths.token[:, :, above, None]
        found = found + (same & paths.counts[:, :, above, None])
    return found
