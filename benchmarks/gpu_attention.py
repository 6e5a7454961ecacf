"""Microseconds of paged attention on a GPU by tiling, beside the time that its KV bytes need.

    python benchmarks/gpu_attention.py [--bandwidth 4.3]

Rows: layer kind (heads x kv heads x head width), query rows, batch, context. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

import torch
import triton

from frostline.kernels.paged import Tiling, paged_attention
from frostline.kernels.reference import PagedRows

PAGE = 16
# name, heads, kv heads, head width, window
LAYERS = [("E4B sliding", 8, 2, 256, 512), ("E4B full", 8, 2, 512, None), ("31B full", 32, 4, 512, None)]
LOADS = [(1, 128), (8, 128), (32, 128), (1, 4096), (1, 32768)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s that the chip reaches")
    parser.add_argument("--nodes", default="6")
    options = parser.parse_args()
    for (name, heads, kv_heads, hd, window), (batch, context) in product(LAYERS, LOADS):
        for nodes in map(int, options.nodes.split(",")):
            seen = context if window is None else min(window, context)
            floor = batch * seen * 2 * kv_heads * hd * 2 / options.bandwidth / 1e6
            times = {}
            for tiling in tilings(nodes * heads // kv_heads, hd):
                key = f"m{tiling.block_m} s{tiling.block_s} w{tiling.num_warps} p{tiling.num_stages}"
                times[key] = measure(heads, kv_heads, hd, window, batch, context, nodes, tiling)
            default = Tiling.of(nodes * heads // kv_heads, hd, torch.bfloat16)
            key = f"m{default.block_m} s{default.block_s} w{default.num_warps} p{default.num_stages}"
            ranked = sorted(times.items(), key=lambda item: item[1])[:4]
            best = "  ".join(f"{k} {v:.1f}" for k, v in ranked)
            line = f"{name} N={nodes} B={batch} S={context}: floor {floor:.1f}; default {times[key]:.1f}; {best}\n"
            sys.stdout.write(line)
            sys.stdout.flush()


def tilings(packed: int, hd: int) -> list[Tiling]:
    m = Tiling.of(packed, hd, torch.bfloat16).block_m
    sizes = [(s, w, p) for s in (16, 32, 64) for w in (4, 8) for p in (1, 2, 3)]
    return [
        Tiling(block_m=m, block_s=s, num_warps=w, num_stages=p)
        for s, w, p in sizes
        if (s * p <= 128 or hd < 512) and s * hd * p * 4 <= 200_000
    ]


def measure(
    heads: int, kv_heads: int, hd: int, window: int | None, batch: int, context: int, nodes: int, tiling: Tiling
) -> float:
    width = -(-(context + nodes) // PAGE)
    table = (torch.randperm(batch * width, device="cuda") + 1).view(batch, width)
    slots = torch.randn((batch * width + 1) * PAGE, 2 * kv_heads, hd, dtype=torch.bfloat16, device="cuda")
    q = torch.randn(batch, nodes, heads, hd, dtype=torch.bfloat16, device="cuda")
    length = torch.full((batch,), context, device="cuda")
    node = torch.arange(nodes, device="cuda")
    words, depth = ((2 << node) - 1).expand(batch, -1).contiguous(), node.expand(batch, -1).contiguous()
    rows = PagedRows(
        slots=slots,
        table_Bn=table,
        length_B=length,
        page_size=PAGE,
        kv_bound=width * PAGE,
        window=window,
        words_BN=words,
        depth_BN=depth,
    )
    times = triton.testing.do_bench_cudagraph(
        lambda: paged_attention(q, rows, tiling=tiling), rep=5, return_mode="median"
    )
    return 1000 * float(times)


if __name__ == "__main__":
    main()
