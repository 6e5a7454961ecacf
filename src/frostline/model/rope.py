"""Rotary position tables of a model's layer kinds. Knows positions, not requests."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.model.spec import ModelSpec, RopeSpec
from frostline.types import Group


class Rotary:
    """Makes cos and sin for any positions, on the fly: a table for 262,144 positions would be larger than it saves."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self._inv_freq = {kind: inverse_frequencies(rope, wide, device) for kind, rope in spec.ropes.items()}

    def tables(self, kind: Group, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, signed sin) for `positions` [...], each [..., 1, hd] in the model's dtype.

        The sine of the first half is negated, so rotate-half becomes one roll (kernels.reference.apply_rope).
        """
        inv = self._inv_freq[kind]
        angle = positions.unsqueeze(-1).unsqueeze(-1).to(inv.dtype) * inv
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((cos, cos), -1).to(self._dtype), torch.cat((-sin, sin), -1).to(self._dtype)


def inverse_frequencies(rope: RopeSpec, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Angle per position of each pair, [head_dim / 2]; 0 for pairs that pass through (gemma4.md 1.5)."""
    pair = torch.arange(rope.head_dim // 2, dtype=dtype, device=device)
    inv = rope.theta ** (-2.0 * pair / rope.head_dim) / rope.factor
    return torch.where(pair < rope.rotated, inv, torch.zeros_like(inv))
