"""What the models call: the Triton kernel where it runs, its plain-torch twin elsewhere. Knows tensors only.

Kernels serve inference on a GPU in float32 and narrower; float64 and whatever is differentiated take the twins.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from frostline.kernels import reference
from frostline.kernels.reference import NormWeights


def is_fused(x: Tensor) -> bool:
    """Whether kernels serve this tensor. They are imported where they are called: a CPU need not have Triton."""
    return x.is_cuda and x.dtype != torch.float64 and not torch.is_grad_enabled()


def prepared_norm(x: Tensor, norm: NormWeights, residual: Tensor | None = None, scalar: Tensor | None = None) -> Tensor:
    if not is_fused(x):
        return reference.prepared_norm(x, norm, residual, scalar)
    from frostline.kernels import fused

    return fused.prepared_norm(x, norm, residual, scalar)


def norm_pair(x: Tensor, norm: NormWeights, residual: Tensor, then: NormWeights) -> tuple[Tensor, Tensor]:
    if not is_fused(x):
        return reference.norm_pair(x, norm, residual, then)
    from frostline.kernels import fused

    return fused.norm_pair(x, norm, residual, then)


def norm_rope(heads_BQHD: Tensor, norm: NormWeights, cos: Tensor, signed_sin: Tensor) -> Tensor:
    if not is_fused(heads_BQHD):
        return reference.norm_rope(heads_BQHD, norm, cos, signed_sin)
    from frostline.kernels import fused

    return fused.norm_rope(heads_BQHD, norm, cos, signed_sin)


def gated_gelu(gate_up: Tensor) -> Tensor:
    if not is_fused(gate_up):
        return reference.gated_gelu(gate_up)
    from frostline.kernels import fused

    return fused.gated_gelu(gate_up)


def gelu_times(gate: Tensor, up: Tensor) -> Tensor:
    if not is_fused(gate):
        return reference.gelu_times(gate, up)
    from frostline.kernels import fused

    return fused.gelu_times(gate, up)


def experts(y_RD: Tensor, weights_Rk: Tensor, experts_Rk: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    if not is_fused(y_RD):
        return reference.experts(y_RD, weights_Rk, experts_Rk, gate_up_proj, down_proj)
    from frostline.kernels import experts as fused

    return fused.experts(y_RD, weights_Rk, experts_Rk, gate_up_proj, down_proj)


def head_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden weight^T in at least float32. On a GPU it is the product's own accumulator, not rounded in between."""
    if not is_fused(hidden) or hidden.dtype == torch.float32:
        return reference.at_least_float32(F.linear(hidden, weight))
    rows = torch.mm(hidden.flatten(0, -2), weight.t(), out_dtype=torch.float32)
    return rows.view(*hidden.shape[:-1], -1)


def paged_attention(
    q_BNHD: Tensor,
    slots: Tensor,
    table_Bn: Tensor,
    length_B: Tensor,
    *,
    page_size: int,
    kv_bound: int,
    window: int | None,
    words_BN: Tensor | None = None,
    depth_BN: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """reference.paged_attention, by its kernel; only where `is_fused`: elsewhere gathered rows are shared by layers."""
    from frostline.kernels import paged

    return paged.paged_attention(
        q_BNHD,
        slots,
        table_Bn,
        length_B,
        page_size=page_size,
        kv_bound=kv_bound,
        window=window,
        words_BN=words_BN,
        depth_BN=depth_BN,
        offset=offset,
    )
