"""Device state of the running requests, indexed by row; row 0 is padding and stays zero.

An iteration reads and writes only this (architecture 4.1), so a batch is a vector of row indices and joining or leaving
it moves no state. Rows are written by the device side alone; the host keeps its own, lagging, view.

R rows, B batch, D hidden, n pages of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.runner.processing import RuleState
from frostline.runner.rules import LogitRules, RuleFeatures
from frostline.runner.sampling import SamplingRows
from frostline.runner.transfer import to_device
from frostline.types import Group

NO_RULES = RuleFeatures()


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """What a request brings when it is admitted to a row: its sampling, its own draft depth, its rules for logits."""

    row: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    depth: int
    rules: LogitRules | None = None


class Rows:
    """length [R] is `P`; bonus [R] and hidden [R, D] are the seed; depth [R] is a row's own draft depth.

    tables[group] [R, n] are page tables; sampling_rows are the sampling parameters of every row; rules are penalties,
    biases and masks, which only batches with such a request read and write.
    """

    def __init__(
        self,
        *,
        length: Tensor,
        bonus: Tensor,
        depth: Tensor,
        hidden: Tensor,
        tables: Mapping[Group, Tensor],
        sampling_rows: SamplingRows,
        rules: RuleState,
    ) -> None:
        self.length, self.bonus, self.depth, self.hidden = length, bonus, depth, hidden
        self.tables, self.sampling_rows, self.rules = tables, sampling_rows, rules
        self.device = length.device

    @classmethod
    def empty(
        cls,
        num_rows: int,
        *,
        hidden_size: int,
        vocab_size: int,
        table_width: int,
        groups: Sequence[Group],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Rows:
        """Rows with no request in them."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def ints(*shape: int) -> Tensor:
            return torch.zeros(num_rows, *shape, dtype=torch.int64, device=device)

        def floats() -> Tensor:
            return torch.zeros(num_rows, dtype=wide, device=device)

        return cls(
            length=ints(),
            bonus=ints(),
            depth=ints(),
            hidden=torch.zeros(num_rows, hidden_size, dtype=dtype, device=device),
            tables={group: ints(table_width) for group in groups},
            sampling_rows=SamplingRows(temperature=floats(), top_k=ints(), top_p=floats(), min_p=floats(), seed=ints()),
            rules=RuleState(num_rows=num_rows, vocab_size=vocab_size, dtype=wide, device=device),
        )

    def tensors(self, features: RuleFeatures = NO_RULES) -> tuple[Tensor, ...]:
        """All state of a batch with these features, flat."""
        s = self.sampling_rows
        sampling = s.temperature, s.top_k, s.top_p, s.min_p, s.seed
        always = self.length, self.bonus, self.depth, self.hidden, *sampling, *self.tables.values()
        return *always, *self.rules.tensors(features)

    def over(self, tensors: Sequence[Tensor], features: RuleFeatures = NO_RULES) -> Rows:
        """Rows of the same shape over other tensors: how a recording takes its state as arguments."""
        length, bonus, depth, hidden, temperature, top_k, top_p, min_p, seed, *rest = tensors
        tables, rules = rest[: len(self.tables)], rest[len(self.tables) :]
        return Rows(
            length=length,
            bonus=bonus,
            depth=depth,
            hidden=hidden,
            tables=dict(zip(self.tables, tables, strict=True)),
            sampling_rows=SamplingRows(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed),
            rules=self.rules.over(features, rules),
        )

    def index(self, rows: Sequence[int]) -> Tensor:
        """Row indices on the device, [B]."""
        return to_device(rows, dtype=torch.int64, device=self.device)

    def admit(self, values: Sequence[RowValues]) -> None:
        """Reset rows for new requests."""
        at = self.index([v.row for v in values])
        self.length.index_fill_(0, at, 0)
        for table in self.tables.values():
            table.index_fill_(0, at, 0)
        sampling = self.sampling_rows
        for field, column in (
            (self.depth, [v.depth for v in values]),
            (sampling.temperature, [v.temperature for v in values]),
            (sampling.top_k, [v.top_k for v in values]),
            (sampling.top_p, [v.top_p for v in values]),
            (sampling.min_p, [v.min_p for v in values]),
            (sampling.seed, [v.seed for v in values]),
        ):
            field.index_copy_(0, at, to_device(column, dtype=field.dtype, device=self.device))
        for value in values:
            self.rules.admit(value.row, value.rules)

    def write_table(self, group: Group, writes: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Set entries of one group's page tables, in one copy. writes: (row, first entry, pages) each."""
        table = self.tables[group]
        width = int(table.shape[1])
        # By entry, since a copy takes each one once: the last write of an entry counts.
        entries = {row * width + at: page for row, start, pages in writes for at, page in enumerate(pages, start=start)}
        table.view(-1).index_copy_(0, self.index(list(entries)), self.index(list(entries.values())))

    def seed(self, rows_B: Tensor, length_B: Tensor, bonus_B: Tensor, hidden_BD: Tensor) -> None:
        """Publish the state of the next iteration: new length, bonus token, hidden of the last committed row."""
        self.length.index_copy_(0, rows_B, length_B)
        self.bonus.index_copy_(0, rows_B, bonus_B)
        self.hidden.index_copy_(0, rows_B, hidden_BD)
        for state in (self.length, self.bonus, self.hidden):
            state[0].zero_()

    def sampling(self, rows_B: Tensor) -> SamplingRows:
        s = self.sampling_rows
        return SamplingRows(
            temperature=s.temperature.index_select(0, rows_B),
            top_k=s.top_k.index_select(0, rows_B),
            top_p=s.top_p.index_select(0, rows_B),
            min_p=s.min_p.index_select(0, rows_B),
            seed=s.seed.index_select(0, rows_B),
        )

    def batch_tables(self, rows_B: Tensor) -> Mapping[Group, Tensor]:
        return {group: table.index_select(0, rows_B) for group, table in self.tables.items()}
