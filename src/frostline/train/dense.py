"""Attention contexts that train fast: the same visibility as the dense oracle, without T x T masks.

Full layers run causal attention; sliding layers look at their own block of W rows and the one before. Equal to
model.attention's CausalContext and FrozenDenseContext (a test holds them so), and differentiable.

B sequences, T positions, H heads, G = 2 * Hkv, hd head width, n blocks, W window.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from frostline.model.attention import AttentionContext, Ropes, dense_attention
from frostline.model.rope import Rotary
from frostline.model.spec import LayerSpec, ModelSpec
from frostline.types import Group


class CausalBlocks:
    """A target's forward over positions 0..T-1. `kv[layer]` [B, T, G, hd] of every owner once the forward passed it."""

    def __init__(self, spec: ModelSpec, rotary: Rotary, length: int, device: torch.device) -> None:
        positions_1T = torch.arange(length, device=device).unsqueeze(0)
        self._ropes = Ropes(rotary, positions_1T)
        self._local = LocalWindow(spec.window, length, ahead=0, device=device)
        self.kv: dict[int, Tensor] = {}

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        if kv_BQGD is not None:
            self.kv[layer.index] = kv_BQGD
        rows = self.kv[layer.kv_owner]
        return causal(q_BQHD, rows) if layer.kind == "full" else self._local(q_BQHD, rows)

    def pick(self, row_B: Tensor) -> AttentionContext:
        raise AssertionError("a dense forward keeps every row")


class FrozenBlocks:
    """All positions' drafts at once: row i sees the target's rows 0..i from the constant position i + 1 + offset."""

    def __init__(
        self,
        target: ModelSpec,
        rotary: Rotary,
        *,
        kv: Mapping[Group, Tensor],
        length: int,
        offset: int,
        device: torch.device,
    ) -> None:
        positions_1T = torch.arange(length, device=device).unsqueeze(0) + (1 + offset)
        self._kv = kv
        self._ropes = Ropes(rotary, positions_1T)
        self._local = LocalWindow(target.window, length, ahead=1 + offset, device=device)

    def rope(self, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        return self._ropes(layer)

    def attend(self, layer: LayerSpec, q_BQHD: Tensor, kv_BQGD: Tensor | None) -> Tensor:
        assert kv_BQGD is None, "an assistant's layer has no keys and values of its own"
        rows = self._kv[layer.kind]
        return causal(q_BQHD, rows) if layer.kind == "full" else self._local(q_BQHD, rows)

    def pick(self, row_B: Tensor) -> AttentionContext:
        raise AssertionError("training needs every query row")


def last_owners(spec: ModelSpec, kv: Mapping[int, Tensor]) -> dict[Group, Tensor]:
    """What the assistant reads: keys and values of the last owner of each layer kind."""
    return {kind: kv[spec.last_owner(kind)] for kind in spec.ropes}


def causal(q_BTHD: Tensor, kv_BTGD: Tensor) -> Tensor:
    """Row i sees rows 0..i; scale 1. Returns [B, T, H * hd]."""
    k, v = _heads(kv_BTGD, q_BTHD.shape[2])
    out = F.scaled_dot_product_attention(q_BTHD.transpose(1, 2), k, v, is_causal=True, scale=1.0)
    return out.transpose(1, 2).flatten(2)


class LocalWindow:
    """Row i, standing at position i + ahead, sees rows j <= i with i + ahead - j < W."""

    def __init__(self, window: int, length: int, *, ahead: int, device: torch.device) -> None:
        self._window, self._blocks = window, -(-length // window)
        self._pad = self._blocks * window - length
        if self._blocks <= 2:
            row = torch.arange(length, device=device)
            gap = row.unsqueeze(1) - row
            self._whole: Tensor | None = (gap >= 0) & (gap + ahead < window)
            return
        self._whole = None
        query, key = torch.arange(window, device=device), torch.arange(2 * window, device=device) - window
        gap = query.unsqueeze(1) - key
        inside_W2W = (gap >= 0) & (gap + ahead < window)
        # The first block has no predecessor: the zeros in its place must not be seen.
        first = inside_W2W & (key >= 0)
        self._mask = torch.stack([first, *[inside_W2W] * (self._blocks - 1)])

    def __call__(self, q_BTHD: Tensor, kv_BTGD: Tensor) -> Tensor:
        if self._whole is not None:
            return dense_attention(q_BTHD, kv_BTGD, self._whole)
        batch, length, heads, width = q_BTHD.shape
        k, v = _heads(kv_BTGD, heads)
        q = F.pad(q_BTHD.transpose(1, 2), (0, 0, 0, self._pad))
        # Blocks join the heads, so that one mask serves the whole batch: [B, H * n, W, hd].
        q = q.reshape(batch, heads * self._blocks, self._window, width)
        mask = self._mask.repeat(heads, 1, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(q, self._pairs(k), self._pairs(v), attn_mask=mask, scale=1.0)
        out = out.reshape(batch, heads, self._blocks * self._window, width)[:, :, :length]
        return out.transpose(1, 2).flatten(2)

    def _pairs(self, x_BHTD: Tensor) -> Tensor:
        """Each block's rows after those of the block before it, [B, H * n, 2W, hd]."""
        batch, heads, _, width = x_BHTD.shape
        padded = F.pad(x_BHTD, (0, 0, self._window, self._pad))
        blocks = padded.view(batch, heads, self._blocks + 1, self._window, width)
        return torch.cat((blocks[:, :, :-1], blocks[:, :, 1:]), dim=3).flatten(1, 2)


def _heads(kv_BTGD: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values for every query head, [B, H, T, hd]."""
    kv_heads = kv_BTGD.shape[2] // 2
    k, v = torch.split(kv_BTGD.transpose(1, 2), kv_heads, dim=1)
    if heads == kv_heads:
        return k, v
    return k.repeat_interleave(heads // kv_heads, dim=1), v.repeat_interleave(heads // kv_heads, dim=1)
