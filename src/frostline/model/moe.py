"""Mixture-of-experts block of 26B-A4B (gemma4.md 1.8). Static shapes and no host sync.

R rows, D hidden, E experts, k experts per row, Im expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frostline.kernels import ops, reference
from frostline.model.spec import MoESpec
from frostline.parallel.group import ParallelGroup
from frostline.parallel.linear import ColumnLinear


class Router(nn.Module):
    """Chooses experts and their weights. Its input is the residual before any norm."""

    def __init__(
        self, size: int, moe: MoESpec, eps: float, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.top_k, self.eps, self._shrink = moe.top_k, eps, size**-0.5
        self.proj = ColumnLinear(size, moe.num_experts, group=group, dtype=dtype, device=device)
        self.scale = nn.Parameter(torch.empty(size, dtype=dtype, device=device))
        self.per_expert_scale = nn.Parameter(torch.empty(moe.num_experts, dtype=dtype, device=device))

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(weights [R, k] at least float32, expert ids [R, k])."""
        z = reference.rms_norm(residual, None, self.eps) * self.scale * self._shrink
        p = reference.at_least_float32(self.proj(z)).softmax(-1)
        weights, experts = p.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.per_expert_scale[experts], experts


class Experts(nn.Module):
    """All experts' gated feed-forwards. gate_up_proj [E, 2 Im, D], gate half first; down_proj [E, D, Im]."""

    def __init__(self, size: int, moe: MoESpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        shape = (moe.num_experts, 2 * moe.intermediate, size)
        self.gate_up_proj = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        self.down_proj = nn.Parameter(torch.empty(moe.num_experts, size, moe.intermediate, dtype=dtype, device=device))

    def forward(self, y_RD: Tensor, weights_Rk: Tensor, experts_Rk: Tensor) -> Tensor:
        return ops.experts(y_RD, weights_Rk, experts_Rk, self.gate_up_proj, self.down_proj)
