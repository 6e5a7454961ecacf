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

from frostline.runner.sampling import SamplingRows
from frostline.types import Group


@dataclass(frozen=True, kw_only=True)
class RowValues:
    """What a request brings when it is admitted to a row: its sampling and its own draft depth."""

    row: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    depth: int


class Rows:
    """length [R] is `P`; bonus [R] and hidden [R, D] are the seed; tables[group] [R, n] are page tables."""

    def __init__(
        self,
        num_rows: int,
        *,
        hidden_size: int,
        table_width: int,
        groups: Sequence[Group],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def ints() -> Tensor:
            return torch.zeros(num_rows, dtype=torch.int64, device=device)

        def floats() -> Tensor:
            return torch.zeros(num_rows, dtype=wide, device=device)

        self.device = device
        self.length, self.bonus, self.depth = ints(), ints(), ints()
        self.hidden = torch.zeros(num_rows, hidden_size, dtype=dtype, device=device)
        self.tables: dict[Group, Tensor] = {
            group: torch.zeros(num_rows, table_width, dtype=torch.int64, device=device) for group in groups
        }
        self._sampling = SamplingRows(temperature=floats(), top_k=ints(), top_p=floats(), min_p=floats(), seed=ints())

    def index(self, rows: Sequence[int]) -> Tensor:
        """Row indices on the device, [B]."""
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def admit(self, values: Sequence[RowValues]) -> None:
        """Reset rows for new requests."""
        at = self.index([v.row for v in values])
        self.length.index_fill_(0, at, 0)
        for table in self.tables.values():
            table.index_fill_(0, at, 0)
        sampling = self._sampling
        for field, column in (
            (self.depth, [v.depth for v in values]),
            (sampling.temperature, [v.temperature for v in values]),
            (sampling.top_k, [v.top_k for v in values]),
            (sampling.top_p, [v.top_p for v in values]),
            (sampling.min_p, [v.min_p for v in values]),
            (sampling.seed, [v.seed for v in values]),
        ):
            field[at] = torch.tensor(column, dtype=field.dtype, device=self.device)

    def grow(self, group: Group, row: int, start: int, pages: Sequence[int]) -> None:
        """Append pages to a row's table."""
        self.tables[group][row, start : start + len(pages)] = self.index(pages)

    def seed(self, rows_B: Tensor, length_B: Tensor, bonus_B: Tensor, hidden_BD: Tensor) -> None:
        """Publish the state of the next iteration: new length, bonus token, hidden of the last committed row."""
        self.length.index_copy_(0, rows_B, length_B)
        self.bonus.index_copy_(0, rows_B, bonus_B)
        self.hidden.index_copy_(0, rows_B, hidden_BD)
        for state in (self.length, self.bonus, self.hidden):
            state[0].zero_()

    def sampling(self, rows_B: Tensor) -> SamplingRows:
        s = self._sampling
        return SamplingRows(
            temperature=s.temperature.index_select(0, rows_B),
            top_k=s.top_k.index_select(0, rows_B),
            top_p=s.top_p.index_select(0, rows_B),
            min_p=s.min_p.index_select(0, rows_B),
            seed=s.seed.index_select(0, rows_B),
        )

    def batch_tables(self, rows_B: Tensor) -> Mapping[Group, Tensor]:
        return {group: table.index_select(0, rows_B) for group, table in self.tables.items()}
