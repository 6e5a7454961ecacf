"""The parts of a Gemma 4 layer: norms, feed-forward, attention projections (gemma4.md section 1).

B requests, Q query rows, D hidden, H heads, hd head width. Attention itself is the context's: these modules know
neither pages nor masks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frostline.kernels import ops, reference
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
        self._ready: reference.NormWeights | None = None

    def prepare(self) -> None:
        """Make the weight ready for inference; call again after it changes."""
        self._ready = reference.prepare_norm(self.weight, self.eps)

    def forward(self, x: Tensor, residual: Tensor | None = None, scalar: Tensor | None = None) -> Tensor:
        """The norm of x, added to `residual` where one is given, the whole times `scalar` where one is given."""
        if self._ready is not None and not self.training:
            return ops.prepared_norm(x, self._ready, residual, scalar)
        y = reference.rms_norm(x, self.weight, self.eps)
        y = y if residual is None else residual + y
        return y if scalar is None else y * scalar

    def then(self, x: Tensor, residual: Tensor, following: RMSNorm) -> tuple[Tensor, Tensor]:
        """(r, following(r)) with r = residual + norm of x: two norms in one pass."""
        if self._ready is not None and following._ready is not None and not self.training:
            return ops.norm_pair(x, self._ready, residual, following._ready)
        stream = self(x, residual)
        return stream, following(stream)

    def turn(self, heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        """Per-head norm and rope."""
        if self._ready is not None and not self.training:
            return ops.norm_rope(heads, self._ready, cos, signed_sin)
        return reference.apply_rope(self(heads), cos, signed_sin)

    __call__ = forward


class Embedding(nn.Module):
    """A table read by token id and, where it is tied, as the head. weight [V, D]."""

    def __init__(self, rows: int, width: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, dtype=dtype, device=device))

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight)

    __call__ = forward


class GatedMLP(nn.Module):
    """down(gelu_tanh(gate x) * up x), gate and up in one projection."""

    def __init__(
        self, size: int, intermediate: int, *, group: ParallelGroup, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.gate_up_proj = ColumnLinear(size, 2 * intermediate, group=group, dtype=dtype, device=device)
        self.down_proj = RowLinear(intermediate, size, group=group, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.gated_gelu(self.gate_up_proj(x)))

    __call__ = forward


class Attention(nn.Module):
    """Projections, per-head norms and rope around the context's attention.

    A layer that owns keys and values projects q, k, v at once (q, k where the raw key also serves as value); a layer
    that shares, and every layer of an assistant, projects q only. Values get no weight and no turn: their norm weight
    is 1 and their rope angle 0, so that all heads go through one norm and one rotation.
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
        self._ready: reference.NormWeights | None = None

    def prepare(self) -> None:
        """Stack the per-head norm weights once; call again after weights change."""
        self._ready = None if self.k_norm is None else reference.prepare_norm(self._stacked(), self.eps)

    def _stacked(self) -> Tensor:
        """Norm weights of all heads, [heads, hd]: queries', keys', and 1 for values."""
        assert self.k_norm is not None
        keys = self.k_norm.weight.expand(self.kv_heads, -1)
        return torch.cat((self.q_norm.weight.expand(self.heads, -1), keys, torch.ones_like(keys)))

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        layer = self.layer
        batch, queries, _ = reference.sizes(x)
        heads = self.qkv_proj(x).view(batch, queries, self.projected, layer.head_dim)
        if self.k_norm is None:
            q = self.q_norm.turn(heads, *context.rope(layer))
            return self.o_proj(context.attend(layer, q, None))
        if layer.k_eq_v:
            heads = torch.cat((heads, heads[:, :, self.heads :]), dim=2)
        if self._ready is not None and not self.training:
            turned = ops.norm_rope(heads, self._ready, *context.rope(layer))
        else:
            normed = reference.rms_norm(heads, self._stacked(), self.eps)
            turned = reference.apply_rope(normed, *context.rope(layer))
        q, kv = turned.narrow(2, 0, self.heads), turned.narrow(2, self.heads, 2 * self.kv_heads)
        return self.o_proj(context.attend(layer, q, kv))

    __call__ = forward
