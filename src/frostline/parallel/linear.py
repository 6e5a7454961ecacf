"""Linear layers that know which of their dimensions a parallel group shards. No biases: Gemma 4 has none.

Calling a part of a model goes straight to its forward: no hooks are used, and a decode step makes hundreds of calls.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frostline.parallel.group import ParallelGroup


class ColumnLinear(nn.Module):
    """`y = x W^T` with the output dimension sharded; each rank keeps its own slice of `y`. weight [out / size, in]."""

    def __init__(
        self, in_size: int, out_size: int, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        out_local = group.share(out_size, "output width")
        self.weight = nn.Parameter(torch.empty(out_local, in_size, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    __call__ = forward


class RowLinear(nn.Module):
    """`y = x W^T` with the input dimension sharded; the ranks' partial `y` are summed. weight [out, in / size]."""

    def __init__(
        self, in_size: int, out_size: int, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        in_local = group.share(in_size, "input width")
        self.weight = nn.Parameter(torch.empty(out_size, in_local, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    __call__ = forward
