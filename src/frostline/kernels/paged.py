"""Paged attention in Triton: query rows of a verify or draft forward against keys and values where they lie.

One program takes the query rows that share a kv head (nodes x heads of its group, packed for the matrix unit) over one
split of the KV rows. Borders of splits depend on the request's own length and nothing else, so its result does not
depend on its batch or on the bound. A second kernel joins the splits. Rows below the frost line are seen by position
and window, new rows by ancestor words. The twin is reference.paged_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from frostline.kernels.reference import PagedRows

# A split holds 64 rows, or twice that as often as it takes for a request to have at most 64 splits.
SHORTEST = 64
MOST_SPLITS = 64


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Rows of queries and of keys that one step of a program handles, and how it is compiled.

    `of` names one that is the best on an H200 or near it, over the released shapes (benchmarks/gpu_attention.py).
    """

    block_m: int
    block_s: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, packed: int, hd: int, dtype: torch.dtype) -> Tiling:
        """packed: query rows that share a kv head."""
        wide, large = dtype == torch.float32, hd > 256
        return cls(
            block_m=min(32 if large else 64, max(16, triton.next_power_of_2(packed))),
            block_s=(16 if large else 32) if wide else (32 if large else 64),
            num_warps=4 if large or hd <= 128 else 8,
            num_stages=2 if large and not wide else 1,
        )


@triton.jit
def _split_kernel(
    q_ptr,
    kv_ptr,
    table_ptr,
    length_ptr,
    words_ptr,
    depth_ptr,
    part_ptr,
    stats_ptr,
    table_width,
    nodes,
    offset,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HD: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOWED: tl.constexpr,
    FROZEN: tl.constexpr,
    SHORTEST_SPLIT: tl.constexpr,
    MOST: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    batch, head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    split = tl.program_id(2)
    group: tl.constexpr = HEADS // KV_HEADS
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = m < nodes * group
    node = tl.minimum(m // group, nodes - 1)
    d = tl.arange(0, HD)
    length = tl.load(length_ptr + batch)
    if FROZEN:
        end = length
        position = tl.zeros((BLOCK_M,), tl.int64) + length + offset
        word = tl.zeros((BLOCK_M,), tl.int64)
        depth = tl.zeros((BLOCK_M,), tl.int64)
        least = length + offset
    else:
        end = length + nodes
        word = tl.load(words_ptr + batch * nodes + node)
        depth = tl.load(depth_ptr + batch * nodes + node)
        position = length + depth
        least = length
    # Zero, and the shortest split, in the type of row numbers.
    first = end - end
    if WINDOWED:
        first = tl.maximum(least - window + 1, 0) // SHORTEST_SPLIT * SHORTEST_SPLIT
    rows_per_split = end - end + SHORTEST_SPLIT
    for _ in tl.static_range(20):
        rows_per_split = tl.where(rows_per_split * MOST < end - first, rows_per_split * 2, rows_per_split)
    begin = first + split * rows_per_split
    q_at = ((batch * nodes + node) * HEADS + head * group + m % group) * HD
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=real[:, None], other=0.0)
    top = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    out = tl.zeros((BLOCK_M, HD), tl.float32)
    for start in range(begin, tl.minimum(begin + rows_per_split, end), BLOCK_S):
        row = start + tl.arange(0, BLOCK_S)
        there = row < end
        page = tl.load(table_ptr + batch * table_width + row // PAGE, mask=there, other=0)
        kv_at = (page * PAGE + row % PAGE) * (2 * KV_HEADS * HD) + head * HD
        k = tl.load(kv_ptr + kv_at[:, None] + d[None, :], mask=there[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        seen = there[None, :] & (row < length)[None, :]
        if WINDOWED:
            seen = seen & (position[:, None] - row[None, :] < window)
        if not FROZEN:
            new = tl.minimum(tl.maximum(row - length, 0), nodes - 1)
            related = ((word[:, None] >> new[None, :]) & 1) > 0
            if WINDOWED:
                key_depth = tl.load(depth_ptr + batch * nodes + new)
                related = related & (depth[:, None] - key_depth[None, :] < window)
            seen = seen | (there & (row >= length))[None, :] & related
        score = tl.where(seen, score, -1e30)
        best = tl.maximum(top, tl.max(score, 1))
        weight = tl.where(seen, tl.exp(score - best[:, None]), 0.0)
        fade = tl.exp(top - best)
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(kv_ptr + kv_at[:, None] + KV_HEADS * HD + d[None, :], mask=there[:, None], other=0.0)
        out = out * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = best
    at = ((batch * nodes + node) * HEADS + head * group + m % group) * SPLITS + split
    tl.store(stats_ptr + at * 2, top, mask=real)
    tl.store(stats_ptr + at * 2 + 1, total, mask=real)
    tl.store(part_ptr + at[:, None] * HD + d[None, :], out, mask=real[:, None])


@triton.jit
def _join_kernel(part_ptr, stats_ptr, out_ptr, HD: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SPLITS
    d = tl.arange(0, HD)
    top = -1e30
    total = 0.0
    out = tl.zeros((HD,), tl.float32)
    for start in range(0, SPLITS, BLOCK):
        split = start + tl.arange(0, BLOCK)
        there = split < SPLITS
        tops = tl.load(stats_ptr + (at + split) * 2, mask=there, other=-1e30)
        sums = tl.load(stats_ptr + (at + split) * 2 + 1, mask=there, other=0.0)
        best = tl.maximum(top, tl.max(tops, 0))
        # A split without visible rows has the sum 0 and parts of 0.
        weight = tl.where(sums > 0, tl.exp(tops - best), 0.0)
        fade = tl.exp(top - best)
        parts = tl.load(part_ptr + (at + split)[:, None] * HD + d[None, :], mask=(sums > 0)[:, None], other=0.0)
        out = out * fade + tl.sum(parts * weight[:, None], 0)
        total = total * fade + tl.sum(sums * weight, 0)
        top = best
    tl.store(out_ptr + tl.program_id(0).to(tl.int64) * HD + d, out / tl.maximum(total, 1e-30))


def paged_attention(q_BNHD: Tensor, rows: PagedRows, *, tiling: Tiling | None = None) -> Tensor:
    """Twin of reference.paged_attention."""
    batch, nodes, heads, hd = q_BNHD.shape
    slots, length_B, words_BN, depth_BN = rows.slots, rows.length_B, rows.words_BN, rows.depth_BN
    kv_heads = slots.shape[1] // 2
    reach = rows.kv_bound if rows.window is None else min(rows.kv_bound, rows.window + nodes + SHORTEST)
    splits = min(MOST_SPLITS, triton.cdiv(reach, SHORTEST))
    packed = nodes * heads // kv_heads
    tiling = tiling or Tiling.of(packed, hd, slots.dtype)
    out = torch.empty(batch, nodes, heads * hd, dtype=q_BNHD.dtype, device=q_BNHD.device)
    part = torch.empty(batch, nodes, heads, splits, hd, dtype=torch.float32, device=q_BNHD.device)
    stats = torch.empty(batch, nodes, heads, splits, 2, dtype=torch.float32, device=q_BNHD.device)
    _split_kernel[(batch * kv_heads, triton.cdiv(packed, tiling.block_m), splits)](
        q_BNHD.contiguous(),
        slots,
        rows.table_Bn,
        length_B,
        length_B if words_BN is None else words_BN,
        length_B if depth_BN is None else depth_BN,
        part,
        stats,
        rows.table_Bn.stride(0),
        nodes,
        rows.offset,
        rows.window or 0,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HD=hd,
        PAGE=rows.page_size,
        WINDOWED=rows.window is not None,
        FROZEN=words_BN is None or depth_BN is None,
        SHORTEST_SPLIT=SHORTEST,
        MOST=MOST_SPLITS,
        SPLITS=splits,
        BLOCK_M=tiling.block_m,
        BLOCK_S=tiling.block_s,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    _join_kernel[(batch * nodes * heads,)](
        part, stats, out, HD=hd, SPLITS=splits, BLOCK=min(8, triton.next_power_of_2(splits)), num_warps=4
    )
    return out
