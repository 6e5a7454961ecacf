"""Linear layers that know which of their dimensions a parallel group shards. No biases: Gemma 4 has none.

Calling a part of a model goes straight to its forward: no hooks are used, and a decode step makes hundreds of calls.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frostline.parallel.group import ParallelGroup


class Linear(nn.Module):
    """`y = x W^T`, what both kinds share. weight [out, in] of this rank."""

    def __init__(self, in_local: int, out_local: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_local, in_local, dtype=dtype, device=device))

    def prepare(self) -> None:
        """On a CPU lay the weight out by input rows, its shape unchanged; call again after it is replaced.

        A product of few rows then reads it in order: the bundled target's 97 take a sixth less (benchmarks/cpu.py).
        """
        if self.weight.device.type == "cpu":
            self.weight.data = self.weight.data.t().contiguous().t()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    __call__ = forward


class ColumnLinear(Linear):
    """`y = x W^T` with the output dimension sharded; each rank keeps its own slice of `y`. weight [out / size, in]."""

    def __init__(
        self, in_size: int, out_size: int, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(in_size, group.share(out_size, "output width"), dtype=dtype, device=device)


class RowLinear(Linear):
    """`y = x W^T` with the input dimension sharded; the ranks' partial `y` are summed. weight [out, in / size]."""

    def __init__(
        self, in_size: int, out_size: int, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group.share(in_size, "input width"), out_size, dtype=dtype, device=device)
