"""Balanced clusters of tokens for the centroid head, from the target's embedding table. Knows nothing of training."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.errors import ConfigError
from frostline.train.initial import principal_directions


@torch.no_grad()
def token_ordering(embedding_VD: Tensor, num_clusters: int) -> Tensor:
    """Token ids in cluster order, int64 [V]: the first V / C are the first cluster's (gemma4.md 3.3).

    Tokens are halved along the first principal direction of their unit vectors, again and again; ties go to the lower
    id, so the result is deterministic. Raises ConfigError unless num_clusters is a power of two that divides V.
    """
    vocab = embedding_VD.shape[0]
    if num_clusters < 1 or num_clusters & (num_clusters - 1) or vocab % num_clusters:
        raise ConfigError(f"num_centroids {num_clusters} must be a power of two that divides the vocabulary {vocab}")
    unit = torch.nn.functional.normalize(embedding_VD.double().cpu(), dim=-1)
    groups = [torch.arange(vocab)]
    while len(groups) < num_clusters:
        groups = [half for group in groups for half in _halves(group, unit)]
    return torch.cat([group.sort().values for group in groups])


def _halves(group: Tensor, unit_VD: Tensor) -> tuple[Tensor, Tensor]:
    rows = unit_VD[group]
    centred = rows - rows.mean(dim=0)
    along = centred @ principal_directions(centred)[:, 0]
    order = along.argsort(stable=True)
    middle = len(group) // 2
    return group[order[:middle]], group[order[middle:]]
