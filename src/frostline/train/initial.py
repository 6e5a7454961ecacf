"""Random weights to begin training from, scaled for Gemma 4's norms; heads may start from another table's directions.

Deterministic for a seed on any device: values are drawn on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frostline.model.assistant import Assistant
from frostline.model.decoder import Decoder

# What each sublayer adds to the residual stream at the start, in units of its root mean square.
_BRANCH = 0.3


@torch.no_grad()
def initialise(module: Decoder | Assistant, seed: int) -> None:
    """Fill every parameter, and a centroid head with tokens in their own order.

    Query and key norms give attention logits of variance 1, since attention has no scale (gemma4.md 1.5).
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if weight.dim() > 1:
            width = weight.shape[-1]
            if name == "embed_tokens_per_layer.weight":
                width //= len(module.layers)
            weight.copy_(torch.randn(weight.shape, generator=generator) * width**-0.5)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(weight.shape[0] ** -0.25)
        elif ".post_" in name:
            weight.fill_(_BRANCH)
        else:
            weight.fill_(1.0)
    if isinstance(module, Assistant) and module.spec.ordered:
        ordering = module.masked_embedding.token_ordering
        ordering.copy_(torch.arange(len(ordering)))
    module.prepare()


@torch.no_grad()
def head_from_target(assistant: Assistant, target: Decoder) -> None:
    """Start the drafter's head as the target's, seen along the directions in which tokens differ most."""
    table = target.embed_tokens.weight.double().cpu()
    width = assistant.embed_tokens.weight.shape[1]
    assistant.embed_tokens.weight.copy_(table @ principal_directions(table)[:, :width])


def principal_directions(rows_ND: Tensor) -> Tensor:
    """Orthonormal columns [D, D], the direction of largest second moment first; signs are fixed."""
    _, vectors = torch.linalg.eigh(rows_ND.T @ rows_ND)
    vectors = vectors.flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    signed: Tensor = vectors * largest.sign()
    return signed


def decayed(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters, those that weight decay should shrink first: matrices that are no embedding tables."""
    shrunk: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            (shrunk if weight.dim() > 1 and not name.startswith("embed_tokens") else kept).append(weight)
    return shrunk, kept
