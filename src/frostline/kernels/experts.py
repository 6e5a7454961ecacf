"""Mixture-of-experts feed-forward in Triton: each touched expert's weights are read once for all rows that chose it.

Pairs (row, chosen expert) are sorted by expert on the device. One program takes one expert and a tile of its output
width, and returns at once where nobody chose the expert, so the grid is fixed and nothing is read back. The twin is
reference.experts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gate_up_kernel(
    y_ptr,
    order_ptr,
    begin_ptr,
    end_ptr,
    weight_ptr,
    out_ptr,
    top_k,
    size,
    width,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """gelu(y Wg^T) * (y Wu^T) of one expert's pairs, [pairs, width] in sorted order."""
    expert = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(begin_ptr + expert), tl.load(end_ptr + expert)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < width
    gate_at = weight_ptr + (expert * 2 * width + n) * size
    kind = out_ptr.dtype.element_ty
    for start in range(begin, end, BLOCK_M):
        pair = start + tl.arange(0, BLOCK_M)
        there = pair < end
        row = tl.load(order_ptr + pair, mask=there, other=0) // top_k
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for offset in range(0, size, BLOCK_K):
            at = offset + tl.arange(0, BLOCK_K)
            left = at < size
            y = tl.load(y_ptr + row[:, None] * size + at[None, :], mask=there[:, None] & left[None, :], other=0.0)
            weight_mask = inside[:, None] & left[None, :]
            wg = tl.load(gate_at[:, None] + at[None, :], mask=weight_mask, other=0.0)
            wu = tl.load(gate_at[:, None] + width * size + at[None, :], mask=weight_mask, other=0.0)
            gate = tl.dot(y, tl.trans(wg), gate, input_precision="ieee")
            up = tl.dot(y, tl.trans(wu), up, input_precision="ieee")
        # Rounded where the twin's products are.
        gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
        z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = (gate * tl.sigmoid(2.0 * z)).to(kind).to(tl.float32) * up
        tl.store(out_ptr + pair[:, None] * width + n[None, :], active.to(kind), mask=there[:, None] & inside[None, :])


@triton.jit
def _down_kernel(
    hidden_ptr,
    order_ptr,
    begin_ptr,
    end_ptr,
    weight_ptr,
    share_ptr,
    out_ptr,
    size,
    width,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """share * (hidden Wd^T) of one expert's pairs, [pairs, size] in the pairs' own order."""
    expert = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(begin_ptr + expert), tl.load(end_ptr + expert)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < size
    weight_at = weight_ptr + (expert * size + n) * width
    kind = out_ptr.dtype.element_ty
    for start in range(begin, end, BLOCK_M):
        pair = start + tl.arange(0, BLOCK_M)
        there = pair < end
        source = tl.load(order_ptr + pair, mask=there, other=0)
        out = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for offset in range(0, width, BLOCK_K):
            at = offset + tl.arange(0, BLOCK_K)
            left = at < width
            hidden = tl.load(
                hidden_ptr + pair[:, None] * width + at[None, :], mask=there[:, None] & left[None, :], other=0.0
            )
            weight = tl.load(weight_at[:, None] + at[None, :], mask=inside[:, None] & left[None, :], other=0.0)
            out = tl.dot(hidden, tl.trans(weight), out, input_precision="ieee")
        share = tl.load(share_ptr + source, mask=there, other=0.0).to(tl.float32)
        out = (out.to(kind).to(tl.float32) * share[:, None]).to(kind)
        tl.store(out_ptr + source[:, None] * size + n[None, :], out, mask=there[:, None] & inside[None, :])


def experts(y_RD: Tensor, weights_Rk: Tensor, experts_Rk: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """Twin of reference.experts."""
    rows, size = y_RD.shape
    top_k, (count, _, width) = experts_Rk.shape[1], down_proj.shape
    ordered, order = experts_Rk.flatten().sort(stable=True)
    expert_E = torch.arange(count, device=y_RD.device)
    begin_E, end_E = torch.searchsorted(ordered, expert_E), torch.searchsorted(ordered, expert_E, right=True)
    hidden = torch.empty(rows * top_k, width, dtype=y_RD.dtype, device=y_RD.device)
    out = torch.empty(rows, top_k, size, dtype=y_RD.dtype, device=y_RD.device)
    y = y_RD.contiguous()
    # float32 tiles are twice as large in bytes.
    block_k = 64 if y.dtype == torch.float32 else 128
    _gate_up_kernel[(count, triton.cdiv(width, 16))](
        y,
        order,
        begin_E,
        end_E,
        gate_up_proj,
        hidden,
        top_k,
        size,
        width,
        BLOCK_M=16,
        BLOCK_N=16,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=4,
    )
    _down_kernel[(count, triton.cdiv(size, 32))](
        hidden,
        order,
        begin_E,
        end_E,
        down_proj,
        weights_Rk,
        out,
        size,
        width,
        BLOCK_M=16,
        BLOCK_N=32,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=4,
    )
    return out.sum(1)
