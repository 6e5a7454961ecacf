"""Plain-torch twins of the hot path's kernels: the definition of what each computes, and the CPU path.

Each runs in the dtype of its input and rounds where gemma4.md section 1 says so; in float64 nothing is computed in
float32. They are differentiable, so that the trainer uses the same definitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# A finite stand-in for -inf in attention masks: a query that sees no key (a padding row) then yields a mean of
# whatever lies there and not NaN, which would spread through the padding page.
MASKED = -1e30
# Rows whose expert weights are gathered at a time: bounds the gathered copy, whatever the prompt's length.
_ROWS_AT_ONCE = 16


def sizes(x: Tensor) -> tuple[int, ...]:
    """The shape as plain integers. A recorder (runner.graphs) would otherwise record arithmetic on shapes as work."""
    return tuple(map(int, x.shape))


def at_least_float32(x: Tensor) -> Tensor:
    """float16 and bfloat16 widened to float32; float32 and float64 as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, scaled by `weight` (not 1 + weight), rounded once at the end."""
    wide = at_least_float32(x)
    y = F.rms_norm(wide, (x.shape[-1],), None, eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class NormWeights:
    """A norm's weight made ready for `prepared_norm`: `scaled` is weight * sqrt(D), `floor` is sqrt(D * eps)."""

    scaled: Tensor
    floor: Tensor


def prepare_norm(weight: Tensor, eps: float) -> NormWeights:
    """weight [..., D] of any norm over the last dimension, at least float32."""
    wide, size = at_least_float32(weight.detach()), weight.shape[-1]
    return NormWeights(scaled=wide * size**0.5, floor=wide.new_tensor((size * eps) ** 0.5))


def prepared_norm(x: Tensor, norm: NormWeights, residual: Tensor | None = None, scalar: Tensor | None = None) -> Tensor:
    """rms_norm(x), or residual + rms_norm(x), in half the operations: rms(x) sqrt(D) = hypot(|x|, sqrt(D eps)).

    A CPU has no fused norm in torch, and a decode step there is bound by the number of operations. scalar [1]: factor
    of the whole.
    """
    wide = at_least_float32(x)
    unit = wide / torch.hypot(torch.linalg.vector_norm(wide, dim=-1, keepdim=True), norm.floor)
    if residual is not None and wide.dtype == residual.dtype:
        y = torch.addcmul(residual, unit, norm.scaled)
    else:
        y = (unit * norm.scaled).to(x.dtype)
        y = y if residual is None else residual + y
    return y if scalar is None else y * scalar


def norm_pair(x: Tensor, norm: NormWeights, residual: Tensor, then: NormWeights) -> tuple[Tensor, Tensor]:
    """(r, n): r = residual + norm(x), the new residual stream, and n = then(r), what the next block reads."""
    stream = prepared_norm(x, norm, residual)
    return stream, prepared_norm(stream, then)


def norm_rope(heads_BQHD: Tensor, norm: NormWeights, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Per-head norm, then rope. norm: weights [hd] or [H, hd]. cos, signed_sin [B, Q, 1 or H, hd]."""
    return apply_rope(prepared_norm(heads_BQHD, norm), cos, signed_sin)


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate-half rope over the last dimension. x [..., H, hd]; cos, signed_sin [..., 1, hd] as Rotary.tables makes."""
    return torch.addcmul(x * cos, x.roll(int(x.shape[-1]) // 2, -1), signed_sin)


def gelu_times(gate: Tensor, up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up."""
    return F.gelu(gate, approximate="tanh") * up


def gated_gelu(gate_up: Tensor) -> Tensor:
    """gelu_times over the two halves of the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu_times(gate, up)


def softcap(logits: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(logits / cap) in the dtype given."""
    return logits if cap is None else torch.tanh(logits / cap) * cap


def pack_mask(mask_BQS: Tensor, group: int) -> Tensor:
    """An additive mask repeated for the query heads of one kv head, [B, 1, Q * group, S], as masked_attention takes."""
    b, q_len, s = sizes(mask_BQS)
    return mask_BQS.unsqueeze(2).expand(-1, -1, group, -1).reshape(b, 1, q_len * group, s)


def masked_attention(q_BQHD: Tensor, kv_BSGD: Tensor, packed_mask: Tensor) -> Tensor:
    """Grouped-query attention with scale 1 over gathered rows.

    q_BQHD: H query heads. kv_BSGD: G = 2 * Hkv heads, keys first then values. packed_mask: pack_mask's, in q's dtype.
    Returns [B, Q, H * hd]. The query heads of one kv head are packed beside the query rows, so keys are not repeated.
    """
    b, q_len, heads, hd = sizes(q_BQHD)
    kv_heads = int(kv_BSGD.shape[2]) // 2
    group = heads // kv_heads
    kv = kv_BSGD.transpose(1, 2)
    q = q_BQHD.reshape(b, q_len, kv_heads, group * hd).transpose(1, 2).reshape(b, kv_heads, q_len * group, hd)
    k, v = kv.narrow(1, 0, kv_heads), kv.narrow(1, kv_heads, kv_heads)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=packed_mask, scale=1.0)
    return out.reshape(b, kv_heads, q_len, group * hd).transpose(1, 2).reshape(b, q_len, heads * hd)


def experts(y_RD: Tensor, weights_Rk: Tensor, experts_Rk: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """Sum of the chosen experts' gated feed-forwards, [R, D], each times its weight.

    y_RD: rows. weights_Rk, at least float32, and experts_Rk int64: choices. gate_up_proj [E, 2 Im, D], gate half first;
    down_proj [E, D, Im].
    """
    parts = (torch.split(part, _ROWS_AT_ONCE) for part in (y_RD, weights_Rk, experts_Rk))
    return torch.cat([_few_rows(y, w, e, gate_up_proj, down_proj) for y, w, e in zip(*parts, strict=True)])


def _few_rows(y: Tensor, weights: Tensor, chosen: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    gate_up = torch.einsum("rd,rkid->rki", y, gate_up_proj[chosen])
    down = torch.einsum("rki,rkdi->rkd", gated_gelu(gate_up), down_proj[chosen])
    weighted = (at_least_float32(down) * weights.unsqueeze(-1)).to(y.dtype)
    return weighted.sum(1)


@dataclass(frozen=True, kw_only=True)
class PagedRows:
    """What the query rows of one paged attention see.

    slots [S, 2 * Hkv, hd]: a layer's rows by slot, keys first. table_Bn, length_B int64: page tables and `P`. kv_bound:
    at least the rows of every request, a host value. With words_BN and depth_BN, int64: verify; N new rows at
    `[P, P + N)` are seen by ancestor words and query n sits at `P + depth`. Without: drafting over `[0, P)` from the
    constant position `P + offset`.
    """

    slots: Tensor
    table_Bn: Tensor
    length_B: Tensor
    page_size: int
    kv_bound: int
    window: int | None
    words_BN: Tensor | None = None
    depth_BN: Tensor | None = None
    offset: int = 0


def paged_attention(q_BNHD: Tensor, rows: PagedRows) -> Tensor:
    """Attention with scale 1 of N query rows of H heads, [B, N, H * hd], the masks written out from their definition.

    A query that sees nothing gives zeros.
    """
    _, nodes, heads, _ = sizes(q_BNHD)
    kv_heads = int(rows.slots.shape[1]) // 2
    row_S = torch.arange(min(rows.kv_bound, int(rows.table_Bn.shape[1]) * rows.page_size), device=rows.slots.device)
    slot_BS = rows.table_Bn[:, row_S // rows.page_size] * rows.page_size + row_S % rows.page_size
    length = rows.length_B.view(-1, 1, 1)
    row, old = row_S.view(1, 1, -1), row_S.view(1, 1, -1) < length
    if rows.words_BN is None or rows.depth_BN is None:
        position = (length + rows.offset).expand(-1, nodes, -1)
        seen = old.expand(-1, nodes, -1)
    else:
        position = length + rows.depth_BN.unsqueeze(2)
        node = (row - length).clamp(0, nodes - 1).expand(-1, nodes, -1)
        related = (rows.words_BN.unsqueeze(2) >> node) & 1 > 0
        depth = rows.depth_BN.unsqueeze(1).expand(-1, nodes, -1).gather(2, node)
        row = torch.where(old, row, length + depth)
        seen = old | ((row_S < length + nodes) & related)
    if rows.window is not None:
        seen = seen & (position - row < rows.window)
    mask = torch.where(seen, 0.0, max(MASKED, torch.finfo(q_BNHD.dtype).min)).to(q_BNHD.dtype)
    out = masked_attention(q_BNHD, rows.slots[slot_BS], pack_mask(mask, heads // kv_heads))
    return out * seen.any(2, keepdim=True)
