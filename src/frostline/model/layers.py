"""The parts of a Gemma 4 layer: norms, feed-forward, attention projections (gemma4.md section 1).

B requests, Q query rows, D hidden, H heads, hd head width. Attention itself is the context's: these modules know
neither pages nor masks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frostline.kernels import reference as ops
from frostline.model.attention import AttentionContext
from frostline.model.spec import LayerSpec
from frostline.parallel.group import ParallelGroup
from frostline.parallel.linear import ColumnLinear, RowLinear


class RMSNorm(nn.Module):
    """y = x / rms(x) * weight."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device))
        self._ready: ops.NormWeights | None = None

    def prepare(self) -> None:
        """Make the weight ready for inference; call again after it changes."""
        self._ready = ops.prepare_norm(self.weight, self.eps)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The norm of x, added to `residual` where one is given."""
        if self._ready is not None and not self.training:
            return ops.prepared_norm(x, self._ready, residual)
        y = ops.rms_norm(x, self.weight, self.eps)
        return y if residual is None else residual + y


class Embedding(nn.Module):
    """A table read by token id and, where it is tied, as the head. weight [V, D]."""

    def __init__(self, rows: int, width: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, dtype=dtype, device=device))

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight)


class GatedMLP(nn.Module):
    """down(gelu_tanh(gate x) * up x), gate and up in one projection."""

    def __init__(
        self, size: int, intermediate: int, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.gate_up_proj = ColumnLinear(size, 2 * intermediate, group=group, dtype=dtype, device=device)
        self.down_proj = RowLinear(intermediate, size, group=group, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(ops.gated_gelu(self.gate_up_proj(x)))
        return out


class Attention(nn.Module):
    """Projections, per-head norms and rope around the context's attention.

    A layer that owns keys and values projects q, k, v at once (q, k where the raw key also serves as value); a layer
    that shares, and every layer of an assistant, projects q only.
    """

    def __init__(
        self,
        layer: LayerSpec,
        hidden_size: int,
        eps: float,
        *,
        group: ParallelGroup,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layer, self.eps = layer, eps
        self.heads = layer.num_heads
        self.kv_heads = layer.num_kv_heads if layer.owns_kv else 0
        self.projected = self.heads + self.kv_heads * (1 if layer.k_eq_v else 2)
        hd = layer.head_dim
        self.qkv_proj = ColumnLinear(hidden_size, self.projected * hd, group=group, dtype=dtype, device=device)
        self.o_proj = RowLinear(self.heads * hd, hidden_size, group=group, dtype=dtype, device=device)
        self.q_norm = RMSNorm(hd, eps, dtype=dtype, device=device)
        self.k_norm = RMSNorm(hd, eps, dtype=dtype, device=device) if layer.owns_kv else None
        self._ready: ops.NormWeights | None = None

    def prepare(self) -> None:
        """Stack the per-head norm weights once; call again after weights change."""
        self._ready = None if self.k_norm is None else ops.prepare_norm(self._stacked(), self.eps)

    def _stacked(self) -> Tensor:
        """Norm weights of all projected heads, [heads, hd]; values have none, so ones."""
        assert self.k_norm is not None
        parts = [self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)]
        if not self.layer.k_eq_v:
            parts.append(torch.ones_like(parts[1]))
        return torch.cat(parts)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        heads = self.qkv_proj(x).unflatten(-1, (self.projected, self.layer.head_dim))
        cos, sin = context.rope(self.layer.kind)
        if self.k_norm is None:
            q = ops.apply_rope(self.q_norm(heads), cos, sin)
            out: Tensor = self.o_proj(context.attend(self.layer, q, None))
            return out
        if self._ready is not None and not self.training:
            normed = ops.prepared_norm(heads, self._ready)
        else:
            normed = ops.rms_norm(heads, self._stacked(), self.eps)
        turned = ops.apply_rope(normed[..., : self.heads + self.kv_heads, :], cos, sin)
        if self.layer.k_eq_v:
            values = ops.rms_norm(heads[..., self.heads :, :], None, self.eps)
        else:
            values = normed[..., self.heads + self.kv_heads :, :]
        kv = torch.cat((turned[..., self.heads :, :], values), dim=-2)
        out = self.o_proj(context.attend(self.layer, turned[..., : self.heads, :], kv))
        return out
