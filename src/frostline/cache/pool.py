"""KV tensors of the two layer groups. Knows pages and slots, not requests or positions.

A slot is a row of a page: `page * page_size + offset`. Page 0 is the padding page: whatever must be written somewhere
and read by nobody goes there. Pages are handed out by cache.pages; this module only stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.types import Group


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """What a pool holds: the layers that own keys and values, which all share kv_heads and head_dim."""

    owners: tuple[int, ...]
    kv_heads: int
    head_dim: int
    num_pages: int


class Pool:
    """One layer group: rows of keys and values of every layer that owns them.

    rows [L, num_pages * page_size, 2 * Hkv, hd]: keys' heads first, then values'. The layers of a group share geometry.
    """

    def __init__(self, layout: GroupLayout, rows: Tensor, page_size: int) -> None:
        self.layout, self.rows, self.page_size = layout, rows, page_size
        self.dtype = rows.dtype
        self._index = {layer: i for i, layer in enumerate(layout.owners)}
        # Views of each layer, made once: by slot, and by page for gathers.
        self._slots = rows.unbind(0)
        self._pages = rows.view(len(layout.owners), layout.num_pages, -1).unbind(0)

    @classmethod
    def empty(cls, layout: GroupLayout, *, page_size: int, dtype: torch.dtype, device: torch.device) -> Pool:
        """A pool of zeros: rows that no one has written are read under a mask, and NaN would come through it."""
        shape = (len(layout.owners), layout.num_pages * page_size, 2 * layout.kv_heads, layout.head_dim)
        return cls(layout, torch.zeros(shape, dtype=dtype, device=device), page_size)

    def write(self, layer: int, slots_M: Tensor, kv_MGD: Tensor) -> None:
        """Store rows at their slots. Duplicate slots are allowed only in the padding page."""
        self.slots(layer).index_copy_(0, slots_M, kv_MGD)

    def slots(self, layer: int) -> Tensor:
        """All rows of a layer, by slot: [num_pages * page_size, 2 * Hkv, hd]."""
        return self._slots[self._index[layer]]

    def gather(self, layer: int, pages_BN: Tensor) -> Tensor:
        """Rows of the given pages in order, [B, N * page_size, G, hd]."""
        b, n = map(int, pages_BN.shape)
        paged = self._pages[self._index[layer]].index_select(0, pages_BN.reshape(-1))
        return paged.view(b, n * self.page_size, 2 * self.layout.kv_heads, self.layout.head_dim)

    def copy(self, source_M: Tensor, destination_M: Tensor) -> None:
        """Move rows of every layer between slots. All sources are read before any destination is written."""
        self.rows.index_copy_(1, destination_M, self.rows.index_select(1, source_M))

    def copy_page(self, source: int, destination: int, rows: int) -> None:
        """The first `rows` rows of one page, in every layer, into another page."""
        to, at = destination * self.page_size, source * self.page_size
        self.rows[:, to : to + rows] = self.rows[:, at : at + rows]

    def scrub(self, pages_N: Tensor) -> None:
        """Zero whole pages, so that NaN left by a failed request cannot reach the next owner."""
        self.rows.view(len(self.layout.owners), self.layout.num_pages, -1).index_fill_(1, pages_N, 0)


class KVCache:
    """The pools of both groups. The assistant has none: it reads the target's (architecture 4.5)."""

    def __init__(self, pools: Mapping[Group, Pool], page_size: int) -> None:
        self.pools, self.page_size = pools, page_size

    @classmethod
    def empty(
        cls,
        layouts: Mapping[Group, GroupLayout],
        *,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> KVCache:
        place = torch.device(device)
        pools = {
            group: Pool.empty(layout, page_size=page_size, dtype=dtype, device=place)
            for group, layout in layouts.items()
        }
        return cls(pools, page_size)

    def tensors(self) -> tuple[Tensor, ...]:
        """What the cache holds, one tensor per group."""
        return tuple(pool.rows for pool in self.pools.values())

    def over(self, tensors: Sequence[Tensor]) -> KVCache:
        """A cache of the same layout over other tensors: how a recording takes its state as arguments."""
        pools = {
            group: Pool(pool.layout, rows, self.page_size)
            for (group, pool), rows in zip(self.pools.items(), tensors, strict=True)
        }
        return KVCache(pools, self.page_size)
