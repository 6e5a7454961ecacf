"""Triton kernels of what lies between the matrix products of a layer: norms, rope, gates.

Each computes what its twin of the same name in kernels.reference defines and rounds where that rounds, in one pass over
the data. At decode sizes a launch costs more than the data, so the gain is in their number: one for each norm, rope or
gate.

Runs with Triton's interpreter on a CPU too (TRITON_INTERPRET=1), which is how they are tested without a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from frostline.kernels.reference import NormWeights


@triton.jit
def _unit(x, size, floor):
    """x / hypot(|x|, floor): the norm up to its weight, as prepared_norm has it."""
    return x / tl.sqrt(tl.sum(x * x, 0) + floor * floor)


@triton.jit
def _norm_kernel(
    x_ptr,
    scaled_ptr,
    floor_ptr,
    residual_ptr,
    scalar_ptr,
    out_ptr,
    next_scaled_ptr,
    next_floor_ptr,
    next_ptr,
    size,
    HAS_RESIDUAL: tl.constexpr,
    HAS_SCALAR: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
    y = _unit(x, size, tl.load(floor_ptr)) * tl.load(scaled_ptr + at, mask=inside, other=0.0)
    y = y.to(out_ptr.dtype.element_ty)
    if HAS_RESIDUAL:
        y = (tl.load(residual_ptr + row + at, mask=inside, other=0.0).to(tl.float32) + y.to(tl.float32)).to(y.dtype)
    if HAS_SCALAR:
        y = (y.to(tl.float32) * tl.load(scalar_ptr).to(tl.float32)).to(y.dtype)
    tl.store(out_ptr + row + at, y, mask=inside)
    if HAS_NEXT:
        z = _unit(y.to(tl.float32), size, tl.load(next_floor_ptr))
        z = z * tl.load(next_scaled_ptr + at, mask=inside, other=0.0)
        tl.store(next_ptr + row + at, z.to(y.dtype), mask=inside)


def prepared_norm(x: Tensor, norm: NormWeights, residual: Tensor | None = None, scalar: Tensor | None = None) -> Tensor:
    """Twin of reference.prepared_norm. x [..., D] contiguous."""
    return _norms(x, norm, residual, scalar, None)[0]


def norm_pair(x: Tensor, norm: NormWeights, residual: Tensor, then: NormWeights) -> tuple[Tensor, Tensor]:
    """Twin of reference.norm_pair."""
    return _norms(x, norm, residual, None, then)


def _norms(
    x: Tensor, norm: NormWeights, residual: Tensor | None, scalar: Tensor | None, then: NormWeights | None
) -> tuple[Tensor, Tensor]:
    x, size = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    second = out if then is None else torch.empty_like(x)
    following = norm if then is None else then
    _norm_kernel[(x.numel() // size,)](
        x,
        norm.scaled,
        norm.floor,
        x if residual is None else residual.contiguous(),
        norm.floor if scalar is None else scalar,
        out,
        following.scaled,
        following.floor,
        second,
        size,
        HAS_RESIDUAL=residual is not None,
        HAS_SCALAR=scalar is not None,
        HAS_NEXT=then is not None,
        BLOCK=triton.next_power_of_2(size),
        num_warps=4 if size <= 2048 else 8,
    )
    return out, second


@triton.jit
def _norm_rope_kernel(
    x_ptr,
    scaled_ptr,
    floor_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    x_row,
    weight_head,
    rope_row,
    rope_head,
    heads,
    HD: tl.constexpr,
):
    """One program normalises and turns one head of one row; the head is read twice, once rolled by half."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, HD)
    rolled = (at + HD // 2) % HD
    x_at, weight_at = x_ptr + row * x_row + head * HD, scaled_ptr + head * weight_head
    floor = tl.load(floor_ptr)
    x = tl.load(x_at + at).to(tl.float32)
    other = tl.load(x_at + rolled).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) + floor * floor)
    kind = out_ptr.dtype.element_ty
    y = (x * inverse * tl.load(weight_at + at)).to(kind).to(tl.float32)
    turned = (other * inverse * tl.load(weight_at + rolled)).to(kind).to(tl.float32)
    rope_at = row * rope_row + head * rope_head
    cos = tl.load(cos_ptr + rope_at + at).to(tl.float32)
    sin = tl.load(sin_ptr + rope_at + at).to(tl.float32)
    out = (y * cos).to(kind).to(tl.float32) + turned * sin
    tl.store(out_ptr + (row * heads + head) * HD + at, out.to(kind))


def norm_rope(heads_BQHD: Tensor, norm: NormWeights, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Twin of reference.norm_rope. heads contiguous in its last two dimensions; cos, signed_sin contiguous."""
    batch, queries, heads, hd = heads_BQHD.shape
    x = heads_BQHD.reshape(batch * queries, heads, hd)
    out = torch.empty_like(x)
    rope_heads = cos.shape[-2]
    _norm_rope_kernel[(batch * queries, heads)](
        x,
        norm.scaled,
        norm.floor,
        cos,
        signed_sin,
        out,
        x.stride(0),
        norm.scaled.stride(0) if norm.scaled.dim() == 2 else 0,
        rope_heads * hd,
        hd if rope_heads > 1 else 0,
        heads,
        HD=hd,
        num_warps=2 if hd <= 256 else 4,
    )
    return out.view(batch, queries, heads, hd)


@triton.jit
def _gate_kernel(gate_ptr, up_ptr, out_ptr, gate_row, up_row, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    kind = out_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_row + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + at, mask=inside, other=0.0).to(tl.float32)
    # gelu_tanh: 0.5 x (1 + tanh(z)) = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
    z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    active = (gate * tl.sigmoid(2.0 * z)).to(kind).to(tl.float32)
    tl.store(out_ptr + row * size + at, (active * up).to(kind), mask=inside)


def gated_gelu(gate_up: Tensor) -> Tensor:
    """Twin of reference.gated_gelu."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu_times(gate, up)


def gelu_times(gate: Tensor, up: Tensor) -> Tensor:
    """Twin of reference.gelu_times. Rows of gate and of up lie at one stride each; the last dimension is contiguous."""
    size = gate.shape[-1]
    rows = gate.numel() // size
    gate_2d, up_2d = gate.flatten(0, -2), up.flatten(0, -2)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    block = min(1024, triton.next_power_of_2(size))
    _gate_kernel[(rows, triton.cdiv(size, block))](
        gate_2d, up_2d, out, gate_2d.stride(0), up_2d.stride(0), size, BLOCK=block, num_warps=4
    )
    return out
