"""Attention contexts: what a query row may see, and where keys and values are kept.

A context is made for one forward and passed to it; there is no ambient state. Paged contexts serve the engine (prefill,
decode, chain and tree verify, drafting), dense ones train and serve as the oracle. One predicate decides everywhere
what is inside the window: `query position - key position < W` (architecture 4.4).

B requests, Q query rows, S gathered key rows, N nodes, T positions, H heads, G = 2 * Hkv, hd head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from frostline.cache.pool import KVCache
from frostline.kernels import ops, reference
from frostline.model.rope import Rotary
from frostline.model.spec import LayerSpec, ModelSpec
from frostline.types import Group


class AttentionContext(Protocol):
    """What a layer needs of one forward."""

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        """cos and signed sin for every head that the layer projects, as Ropes gives them."""
        ...

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        """Store the new rows' keys and values if the layer owns any, then attend. Returns [B, Q, H * hd]."""
        ...

    def pick(self, row_B: Tensor) -> AttentionContext:
        """The same context for one query row of each request; nothing more is stored through it."""
        ...


class Ropes:
    """cos and signed sin of query positions, made once per layer kind.

    For a layer that projects only queries: [B, Q, 1, hd]. For one that owns keys and values: [B, Q, heads, hd] with
    angle 0 for its value heads, which come last.
    """

    def __init__(self, rotary: Rotary, positions_BQ: Tensor) -> None:
        self._rotary, self._positions = rotary, positions_BQ
        self._tables: dict[tuple[Group, bool], tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        key = layer.kind, layer.owns_kv
        if key not in self._tables:
            cos, sin = self._rotary.tables(layer.kind, self._positions)
            if layer.owns_kv:
                turned, values = (-1, -1, layer.num_heads + layer.num_kv_heads, -1), (-1, -1, layer.num_kv_heads, -1)
                cos = torch.cat((cos.expand(turned), torch.ones_like(cos).expand(values)), dim=2)
                sin = torch.cat((sin.expand(turned), torch.zeros_like(sin).expand(values)), dim=2)
            self._tables[key] = cos, sin
        return self._tables[key]


@dataclass(frozen=True, kw_only=True)
class TreeRows:
    """The new rows of a tree verify, [B, N] each: node depths, ancestor words (bit j: node j is ancestor-or-self)."""

    depth_BN: Tensor
    ancestors_BN: Tensor


@dataclass(frozen=True, kw_only=True)
class View:
    """What new rows see of one layer kind: gathered pages [B, n], the row indices in them [B, S], the packed mask."""

    pages_Bn: Tensor
    row_BS: Tensor
    mask: Tensor
    group: int


class PagedContext:
    """New rows over paged keys: prefill chunk, decode, chain verify (causal) or tree verify.

    base_B: rows already in the cache, `P`. The Q new rows are stored at row indices `P + j`; their positions are
    `P + j`, or `P + depth` in a tree. tables[kind] [B, pages]: page tables. kv_bound: at least `P + Q` of every
    request, a host value. length_B: new rows that are real, for padded prefill chunks; the rest go to the padding page.
    """

    def __init__(
        self,
        cache: KVCache,
        spec: ModelSpec,
        rotary: Rotary,
        *,
        tables: Mapping[Group, Tensor],
        base_B: Tensor,
        width: int,
        kv_bound: int,
        tree: TreeRows | None = None,
        length_B: Tensor | None = None,
    ) -> None:
        self._cache, self._spec, self._rotary, self._tables = cache, spec, rotary, tables
        self._base_B, self._bound, self._tree, self._length_B = base_B, kv_bound, tree, length_B
        self._width, self._node_Q = width, torch.arange(width, device=base_B.device)
        self._row_BQ = base_B.unsqueeze(1) + self._node_Q
        self.positions_BQ = self._row_BQ if tree is None else base_B.unsqueeze(1) + tree.depth_BN
        self._ropes = Ropes(rotary, self.positions_BQ)
        self._views: dict[Group, View] = {}
        self._slots: dict[Group, Tensor] = {}
        self._gathered: dict[int, Tensor] = {}
        # For the kernel, which knows no chain: the tree, or the chain as one, made when first needed.
        self._nodes = tree

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        if kv_BQGD is not None:
            self._cache.pools[layer.kind].write(
                layer.index, self.slots(layer.kind), self._stored(kv_BQGD).flatten(0, 1)
            )
        if self._length_B is None and ops.is_fused(q_BQHD):
            return self._attend_paged(layer, q_BQHD)
        view = self.view(layer)
        return reference.masked_attention(q_BQHD, self.rows(layer), view.mask)

    def _attend_paged(self, layer: LayerSpec, q_BQHD: Tensor) -> Tensor:
        """Decode and verify where a kernel reads rows in their pages."""
        if self._nodes is None:
            shape = self._row_BQ.shape
            depth, words = (x.expand(shape).contiguous() for x in (self._node_Q, (2 << self._node_Q) - 1))
            self._nodes = TreeRows(depth_BN=depth, ancestors_BN=words)
        rows = reference.PagedRows(
            slots=self._cache.pools[layer.kind].slots(layer.kv_owner),
            table_Bn=self._tables[layer.kind],
            length_B=self._base_B,
            page_size=self._cache.page_size,
            kv_bound=self._bound,
            window=self._spec.window if layer.kind == "sliding" else None,
            words_BN=self._nodes.ancestors_BN,
            depth_BN=self._nodes.depth_BN,
        )
        return ops.paged_attention(q_BQHD, rows)

    def pick(self, row_B: Tensor) -> AttentionContext:
        return _PickedContext(self, self._rotary, row_B)

    def _stored(self, kv_BQGD: Tensor) -> Tensor:
        """Rows as they are stored: zeros from padding, since NaN in the padding page would reach whoever gathers it."""
        if self._length_B is None:
            return kv_BQGD
        return kv_BQGD.masked_fill((self._node_Q >= self._length_B.unsqueeze(1))[..., None, None], 0)

    def slots(self, kind: Group) -> Tensor:
        """Where the new rows are stored, [B * Q], in the group's pool."""
        if kind not in self._slots:
            slots = slots_of(self._tables[kind], self._row_BQ, self._cache.page_size)
            if self._length_B is not None:
                slots = torch.where(self._node_Q < self._length_B.unsqueeze(1), slots, torch.zeros_like(slots))
            self._slots[kind] = slots.flatten()
        return self._slots[kind]

    def rows(self, layer: LayerSpec) -> Tensor:
        """Keys and values of the layer's owner, gathered once, after its new rows were stored: [B, S, G, hd]."""
        owner = layer.kv_owner
        if owner not in self._gathered:
            self._gathered[owner] = self._cache.pools[layer.kind].gather(owner, self.view(layer).pages_Bn)
        return self._gathered[owner]

    def view(self, layer: LayerSpec) -> View:
        """Pages and mask of the layer's kind, made once."""
        kind = layer.kind
        if kind not in self._views:
            window = self._spec.window if kind == "sliding" else None
            pages_Bn, row_BS = page_window(
                self._tables[kind], self._base_B, window, self._width, self._bound, self._cache.page_size
            )
            mask = additive(self._visible(row_BS, window), self._cache.pools[kind].dtype)
            group = layer.num_heads // layer.num_kv_heads
            self._views[kind] = View(
                pages_Bn=pages_Bn, row_BS=row_BS, mask=reference.pack_mask(mask, group), group=group
            )
        return self._views[kind]

    def _visible(self, row_BS: Tensor, window: int | None) -> Tensor:
        """Which key rows each query sees, bool [B, Q, S]."""
        query, row = self.positions_BQ.unsqueeze(2), row_BS.unsqueeze(1)
        inside = query >= row if window is None else (query >= row) & (query - row < window)
        if self._tree is None:
            return inside
        base = self._base_B.view(-1, 1, 1)
        depth, words = self._tree.depth_BN, self._tree.ancestors_BN
        related = ((words.unsqueeze(2) >> self._node_Q) & 1).bool()
        if window is not None:
            related &= depth.unsqueeze(2) - depth.unsqueeze(1) < window
        nodes = self._width
        node_BQS = (row - base).clamp(0, nodes - 1).expand(-1, nodes, -1)
        return torch.where(row < base, inside, related.gather(2, node_BQS) & (row < base + nodes))


class _PickedContext:
    """One query row per request of a PagedContext, over the keys that it stored."""

    def __init__(self, whole: PagedContext, rotary: Rotary, row_B: Tensor) -> None:
        self._whole, self._row_B = whole, row_B
        self._batch_B = torch.arange(len(row_B), device=row_B.device)
        self._ropes = Ropes(rotary, whole.positions_BQ[self._batch_B, row_B].unsqueeze(1))
        self._masks: dict[Group, Tensor] = {}

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        assert kv_BQGD is None, "only layers that share keys and values run after the pick"
        if layer.kind not in self._masks:
            view = self._whole.view(layer)
            by_row = torch.unflatten(view.mask.squeeze(1), 1, (-1, view.group))
            self._masks[layer.kind] = by_row[self._batch_B, self._row_B].unsqueeze(1)
        return reference.masked_attention(q_BQHD, self._whole.rows(layer), self._masks[layer.kind])

    def pick(self, row_B: Tensor) -> AttentionContext:
        raise AssertionError("a picked context has one query row already")


class FrozenContext:
    """The assistant's queries over the target's frozen rows `[0, P)`, at one constant position (architecture 4.5).

    Made once per iteration: keys are gathered at the first draft step and reused by all later ones. Queries are
    [B, Q, ...] where Q is the frontier; every query of a request sees the same rows from the same position.
    """

    def __init__(
        self,
        cache: KVCache,
        target: ModelSpec,
        rotary: Rotary,
        *,
        tables: Mapping[Group, Tensor],
        length_B: Tensor,
        offset: int,
        kv_bound: int,
    ) -> None:
        self._cache, self._target, self._tables, self._bound = cache, target, tables, kv_bound
        self._length_B, self._offset = length_B, offset
        self._position_B = length_B + offset
        self._ropes = Ropes(rotary, self._position_B.unsqueeze(1))
        self._gathered: dict[Group, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[Group, int], Tensor] = {}

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        assert kv_BQGD is None, "an assistant's layer has no keys and values of its own"
        if ops.is_fused(q_BQHD):
            return self._attend_paged(layer.kind, q_BQHD)
        if layer.kind not in self._gathered:
            self._gathered[layer.kind] = self._gather(layer.kind)
        rows, mask_B1S = self._gathered[layer.kind]
        key = layer.kind, int(q_BQHD.shape[1])
        if key not in self._masks:
            group = layer.num_heads // layer.num_kv_heads
            self._masks[key] = reference.pack_mask(mask_B1S.expand(-1, key[1], -1), group)
        return reference.masked_attention(q_BQHD, rows, self._masks[key])

    def pick(self, row_B: Tensor) -> AttentionContext:
        raise AssertionError("drafting needs every query row")

    def _attend_paged(self, kind: Group, q_BQHD: Tensor) -> Tensor:
        """Where a kernel reads rows in their pages."""
        rows = reference.PagedRows(
            slots=self._cache.pools[kind].slots(self._target.last_owner(kind)),
            table_Bn=self._tables[kind],
            length_B=self._length_B,
            page_size=self._cache.page_size,
            kv_bound=self._bound,
            window=self._target.window if kind == "sliding" else None,
            offset=self._offset,
        )
        return ops.paged_attention(q_BQHD, rows)

    def _gather(self, kind: Group) -> tuple[Tensor, Tensor]:
        window = self._target.window if kind == "sliding" else None
        # From one row below the constant position `P - 1` allows, so that both draft positions find their window.
        pages_Bn, row_BS = page_window(
            self._tables[kind], self._length_B - 1, window, 1, self._bound, self._cache.page_size
        )
        seen = row_BS < self._length_B.unsqueeze(1)
        if window is not None:
            seen = seen & (self._position_B.unsqueeze(1) - row_BS < window)
        pool = self._cache.pools[kind]
        rows = pool.gather(self._target.last_owner(kind), pages_Bn)
        return rows, additive(seen, pool.dtype).unsqueeze(1)


class CausalContext:
    """Dense causal attention over positions 0..T-1 of each sequence: training, and the oracle of the paged contexts.

    `kv[layer]` holds the keys and values, [B, T, G, hd], of every owner layer once the forward has passed it.
    """

    def __init__(self, spec: ModelSpec, rotary: Rotary, positions_T: Tensor) -> None:
        self._spec = spec
        self._ropes = Ropes(rotary, positions_T.unsqueeze(0))
        self._masks = _DenseMasks(positions_T, positions_T, spec.window)
        self.kv: dict[int, Tensor] = {}

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        if kv_BQGD is not None:
            self.kv[layer.index] = kv_BQGD
        return dense_attention(q_BQHD, self.kv[layer.kv_owner], self._masks(layer.kind))

    def pick(self, row_B: Tensor) -> AttentionContext:
        raise AssertionError("a dense forward keeps every row")


class FrozenDenseContext:
    """All positions' drafts at once, for training: row i sees the target's rows 0..i, from position i + 1 + offset.

    kv: the target's keys and values by layer kind, [B, T, G, hd]; row i stands for a request with `P = i + 1`.
    """

    def __init__(
        self, target: ModelSpec, rotary: Rotary, *, kv: Mapping[Group, Tensor], positions_T: Tensor, offset: int
    ) -> None:
        query_T = positions_T + 1 + offset
        self._kv = kv
        self._ropes = Ropes(rotary, query_T.unsqueeze(0))
        self._masks = _DenseMasks(query_T, positions_T, target.window, last_row_T=positions_T)

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        assert kv_BQGD is None, "an assistant's layer has no keys and values of its own"
        return dense_attention(q_BQHD, self._kv[layer.kind], self._masks(layer.kind))

    def pick(self, row_B: Tensor) -> AttentionContext:
        raise AssertionError("training needs every query row")


class _DenseMasks:
    """Bool masks [T, T] by layer kind, made once: key row at most `last_row` (or the query), inside the window."""

    def __init__(self, query_T: Tensor, key_T: Tensor, window: int, *, last_row_T: Tensor | None = None) -> None:
        last = (query_T if last_row_T is None else last_row_T).unsqueeze(1)
        full = key_T.unsqueeze(0) <= last
        self._masks: dict[Group, Tensor] = {
            "full": full,
            "sliding": full & (query_T.unsqueeze(1) - key_T.unsqueeze(0) < window),
        }

    def __call__(self, kind: Group) -> Tensor:
        return self._masks[kind]


def dense_attention(q_BTHD: Tensor, kv_BTGD: Tensor, mask_TT: Tensor) -> Tensor:
    """Grouped-query attention with scale 1 under a bool mask shared by the batch. Returns [B, T, H * hd]."""
    heads, kv_heads = q_BTHD.shape[2], kv_BTGD.shape[2] // 2
    k, v = torch.split(kv_BTGD.transpose(1, 2), kv_heads, dim=1)
    if heads != kv_heads:
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    out = F.scaled_dot_product_attention(q_BTHD.transpose(1, 2), k, v, attn_mask=mask_TT, scale=1.0)
    return out.transpose(1, 2).flatten(2)


def slots_of(table_Bn: Tensor, row_BQ: Tensor, page_size: int) -> Tensor:
    """Pool slots of row indices, [B, Q], through the page table [B, n]."""
    page = table_Bn.gather(1, row_BQ.div(page_size, rounding_mode="floor"))
    return page * page_size + row_BQ % page_size


def page_window(
    table_Bn: Tensor, base_B: Tensor, window: int | None, width: int, bound: int, page_size: int
) -> tuple[Tensor, Tensor]:
    """Pages that queries at positions `base .. base + width - 1` can need, and the row index of every gathered row.

    Without a window: the first pages up to `bound` rows. With one: a run of pages from the oldest row that the first
    query sees. Returns (pages [B, n], rows [B, S]); runs that pass the table's end repeat its last page, and their row
    indices say so by lying beyond every query.
    """
    device = table_Bn.device
    batch, table_width = reference.sizes(table_Bn)
    total = min(-(-bound // page_size), table_width)
    offset_S = torch.arange(page_size, device=device)
    count = total if window is None else min(total, (window + width - 2) // page_size + 2)
    if count == total:
        pages = table_Bn[:, :total]
        row = torch.arange(total * page_size, device=device).unsqueeze(0).expand(batch, -1)
        return pages, row
    first_B = (base_B - (window or 0) + 1).clamp(min=0).div(page_size, rounding_mode="floor")
    index_Bn = first_B.unsqueeze(1) + torch.arange(count, device=device)
    pages = table_Bn.gather(1, index_Bn.clamp(max=table_width - 1))
    row = (index_Bn.unsqueeze(2) * page_size + offset_S).flatten(1)
    return pages, row


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible, a large negative value elsewhere; float16 takes its own lowest value."""
    lowest = max(reference.MASKED, torch.finfo(dtype).min)
    return torch.zeros(reference.sizes(visible), dtype=dtype, device=visible.device).masked_fill_(~visible, lowest)
