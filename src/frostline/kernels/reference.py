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


def prepared_norm(x: Tensor, norm: NormWeights, residual: Tensor | None = None) -> Tensor:
    """rms_norm(x), or residual + rms_norm(x), in half the operations: rms(x) sqrt(D) = hypot(|x|, sqrt(D eps)).

    A CPU has no fused norm in torch, and a decode step there is bound by the number of operations.
    """
    wide = at_least_float32(x)
    unit = wide / torch.hypot(torch.linalg.vector_norm(wide, dim=-1, keepdim=True), norm.floor)
    if residual is not None and wide.dtype == residual.dtype:
        return torch.addcmul(residual, unit, norm.scaled)
    y = (unit * norm.scaled).to(x.dtype)
    return y if residual is None else residual + y


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate-half rope over the last dimension. x [..., H, hd]; cos, signed_sin [..., 1, hd] as Rotary.tables makes."""
    return torch.addcmul(x * cos, x.roll(int(x.shape[-1]) // 2, -1), signed_sin)


def gated_gelu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up over the two halves of the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


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
