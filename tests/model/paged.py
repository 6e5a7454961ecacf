"""A decoder over paged keys without an engine: the test's own page tables, one call per chunk of new rows."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.cache.pool import GroupLayout, KVCache
from frostline.model.attention import FrozenContext, PagedContext, TreeRows
from frostline.model.decoder import Decoder
from frostline.model.rope import Rotary
from frostline.types import GROUPS

PAGE = 4
PAGES = 16


class Paged:
    """`batch` requests of up to PAGE * PAGES rows; pages are dealt in a shuffled order that differs per group."""

    def __init__(self, decoder: Decoder, batch: int, *, seed: int = 0) -> None:
        self.decoder, spec = decoder, decoder.spec
        generator = torch.Generator().manual_seed(seed)
        layouts, self.tables = {}, {}
        for kind in GROUPS:
            layer = spec.layers[spec.last_owner(kind)]
            layouts[kind] = GroupLayout(
                owners=spec.owners(kind),
                kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                num_pages=batch * PAGES + 1,
            )
            self.tables[kind] = torch.randperm(batch * PAGES, generator=generator).view(batch, PAGES) + 1
        self.cache = KVCache.empty(layouts, page_size=PAGE, dtype=decoder.dtype, device="cpu")

    def forward(
        self,
        tokens_BQ: Tensor,
        base_B: Tensor,
        *,
        tree: TreeRows | None = None,
        length_B: Tensor | None = None,
        last_B: Tensor | None = None,
        kv_bound: int | None = None,
    ) -> Tensor:
        """Hidden states of new rows that start at row `base_B` of each request."""
        width = tokens_BQ.shape[1]
        context = PagedContext(
            self.cache,
            self.decoder.spec,
            self.decoder.rotary,
            tables=self.tables,
            base_B=base_B,
            width=width,
            kv_bound=kv_bound or int(base_B.max()) + width,
            tree=tree,
            length_B=length_B,
        )
        return self.decoder(tokens_BQ, context, last_B)

    def frozen(self, rotary: Rotary, length_B: Tensor, offset: int, *, kv_bound: int | None = None) -> FrozenContext:
        """The context of an assistant over the first `length_B` rows."""
        return FrozenContext(
            self.cache,
            self.decoder.spec,
            rotary,
            tables=self.tables,
            length_B=length_B,
            offset=offset,
            kv_bound=kv_bound or int(length_B.max()) + 1,
        )


def rows_of(kv_1TGD: Tensor) -> tuple[Tensor, Tensor]:
    """Our key and value rows [1, T, 2 Hkv, hd] as transformers' pair [1, Hkv, T, hd]."""
    k, v = kv_1TGD.chunk(2, dim=2)
    return k.transpose(1, 2), v.transpose(1, 2)
