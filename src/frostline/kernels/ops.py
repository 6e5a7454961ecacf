"""What the models call: the Triton kernel where it runs, its plain-torch twin elsewhere. Knows tensors only.

Kernels serve inference on a GPU in float32 and narrower; float64 and whatever is differentiated take the twins.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from frostline.kernels import reference
from frostline.kernels.reference import NormWeights, PagedRows


def is_fused(x: Tensor) -> bool:
    """Whether kernels serve this tensor."""
    return x.is_cuda and x.dtype != torch.float64 and not torch.is_grad_enabled()


def _of(x: Tensor) -> ModuleType:
    """Where the operations between matrix products are for this tensor. A CPU need not have Triton."""
    if not is_fused(x):
        return reference
    from frostline.kernels import fused

    return fused


def prepared_norm(x: Tensor, norm: NormWeights, residual: Tensor | None = None, scalar: Tensor | None = None) -> Tensor:
    out: Tensor = _of(x).prepared_norm(x, norm, residual, scalar)
    return out


def norm_pair(x: Tensor, norm: NormWeights, residual: Tensor, then: NormWeights) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _of(x).norm_pair(x, norm, residual, then)
    return both


def norm_rope(heads_BQHD: Tensor, norm: NormWeights, cos: Tensor, signed_sin: Tensor) -> Tensor:
    out: Tensor = _of(heads_BQHD).norm_rope(heads_BQHD, norm, cos, signed_sin)
    return out


def gated_gelu(gate_up: Tensor) -> Tensor:
    out: Tensor = _of(gate_up).gated_gelu(gate_up)
    return out


def gelu_times(gate: Tensor, up: Tensor) -> Tensor:
    out: Tensor = _of(gate).gelu_times(gate, up)
    return out


def experts(y_RD: Tensor, weights_Rk: Tensor, experts_Rk: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    if not is_fused(y_RD):
        return reference.experts(y_RD, weights_Rk, experts_Rk, gate_up_proj, down_proj)
    from frostline.kernels import experts as kernel

    return kernel.experts(y_RD, weights_Rk, experts_Rk, gate_up_proj, down_proj)


def head_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden weight^T in at least float32. On a GPU it is the product's own accumulator, not rounded in between."""
    if not is_fused(hidden) or hidden.dtype == torch.float32:
        return reference.at_least_float32(F.linear(hidden, weight))
    rows = torch.mm(hidden.flatten(0, -2), weight.t(), out_dtype=torch.float32)
    return rows.view(*hidden.shape[:-1], -1)


def paged_attention(q_BNHD: Tensor, rows: PagedRows) -> Tensor:
    """The kernel of reference.paged_attention, for where `is_fused`: elsewhere layers share the rows they gather."""
    from frostline.kernels import paged

    return paged.paged_attention(q_BNHD, rows)
