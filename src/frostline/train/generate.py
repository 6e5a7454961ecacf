"""A batched sampler for training text: many prompts at once, one token per forward, no drafting.

A trainer's tool, not the engine: a batch is fixed until its last row ends, and the host looks only every 32 tokens.
Noise is keyed on (seed, position, token) as everywhere, so a row's text does not depend on its batch.

B rows, N new tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from frostline.cache.pool import GroupLayout, KVCache
from frostline.model.attention import PagedContext
from frostline.model.decoder import Decoder
from frostline.model.spec import ModelSpec
from frostline.runner.sampling import SamplingRows, choose, perturb
from frostline.types import GROUPS, Group

_PAGE = 32
_LOOK_EVERY = 32


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt and how to go on from it. temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    tokens: tuple[int, ...]
    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@torch.no_grad()
def generate(
    target: Decoder,
    prompts: Sequence[Prompt],
    *,
    max_new: int,
    stop: Sequence[int],
    batch: int = 1024,
    console: Console | None = None,
) -> list[list[int]]:
    """New tokens of each prompt, in order; a stop token is kept and ends the row."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
    out: list[list[int]] = [[] for _ in prompts]
    target.eval()
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        begun = time.monotonic()
        rows = _batch(target, [prompts[i] for i in chosen], max_new, stop).tolist()
        kept = 0
        for index, row in zip(chosen, rows, strict=True):
            end = next((k + 1 for k, token in enumerate(row) if token in stop), len(row))
            out[index] = row[:end]
            kept += end
        if console is not None:
            rate = kept / (time.monotonic() - begun)
            console.print(f"sampled {first + len(chosen):,} of {len(order):,} rows, {rate:,.0f} tokens/s")
    return out


def _batch(target: Decoder, prompts: Sequence[Prompt], max_new: int, stop: Sequence[int]) -> Tensor:
    """[B, n] new tokens, n <= max_new; what follows a row's stop token is noise."""
    device, spec = target.device, target.spec
    longest = max(len(p.tokens) for p in prompts)
    padded = [list(p.tokens) + [spec.pad_token_id] * (longest - len(p.tokens)) for p in prompts]
    tokens = torch.tensor(padded, device=device)
    known_B = torch.tensor([len(p.tokens) for p in prompts], device=device)
    cache, tables = _cache(spec, len(prompts), longest + max_new, target.dtype, device)
    sampling, bound = _sampling(prompts, device, torch.float64 if target.dtype == torch.float64 else torch.float32)
    sampled = any(p.temperature > 0 for p in prompts)
    filtered = any(p.top_k > 0 or p.top_p < 1 for p in prompts)
    stop_ids = torch.tensor(list(stop), device=device)
    ended_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    new: list[Tensor] = []

    context = PagedContext(
        cache,
        spec,
        target.rotary,
        tables=tables,
        base_B=torch.zeros_like(known_B),
        width=longest,
        kv_bound=longest,
        length_B=known_B,
    )
    hidden = target(tokens, context, last=known_B - 1)
    for count in range(1, max_new + 1):
        logits = target.logits(hidden).squeeze(1)
        score = perturb(logits, sampling, known_B, sampled=sampled, filtered=filtered, max_top_k=bound)
        token_B = choose(score)
        new.append(token_B)
        ended_B = ended_B | torch.isin(token_B, stop_ids)
        if count == max_new or (count % _LOOK_EVERY == 0 and bool(ended_B.all())):
            break
        context = PagedContext(
            cache, spec, target.rotary, tables=tables, base_B=known_B, width=1, kv_bound=longest + count
        )
        hidden = target(token_B.unsqueeze(1), context)
        known_B = known_B + 1
    return torch.stack(new, dim=1)


def _cache(
    spec: ModelSpec, rows: int, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[KVCache, dict[Group, Tensor]]:
    """Pools in which every row owns one run of pages, and the page tables that say so."""
    pages = -(-length // _PAGE)
    table = 1 + torch.arange(rows * pages, device=device).view(rows, pages)
    layouts = {}
    for kind in GROUPS:
        if spec.owners(kind):
            layer = spec.layers[spec.last_owner(kind)]
            layouts[kind] = GroupLayout(
                owners=spec.owners(kind),
                kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                num_pages=1 + rows * pages,
            )
    cache = KVCache.empty(layouts, page_size=_PAGE, dtype=dtype, device=device)
    return cache, dict.fromkeys(layouts, table)


def _sampling(prompts: Sequence[Prompt], device: torch.device, dtype: torch.dtype) -> tuple[SamplingRows, int]:
    """The rows, and the bound on top_k that lets the sampler skip the tail (0 when a row has none)."""
    rows = SamplingRows(
        temperature=torch.tensor([p.temperature for p in prompts], dtype=dtype, device=device),
        top_k=torch.tensor([p.top_k for p in prompts], device=device),
        top_p=torch.tensor([p.top_p for p in prompts], dtype=dtype, device=device),
        min_p=torch.zeros(len(prompts), dtype=dtype, device=device),
        seed=torch.tensor([p.seed for p in prompts], device=device),
    )
    bounded = all(p.top_k > 0 or p.top_p >= 1 for p in prompts if p.temperature > 0)
    return rows, max(p.top_k for p in prompts) if bounded else 0
