"""The one sampling rule (architecture 4.3) for a batch under a plan; target and drafter each have a scorer.

B requests, N nodes, A nodes that may be above another, C candidate tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.runner.processing import Paths, Processor
from frostline.runner.rows import Rows
from frostline.runner.sampling import perturb
from frostline.speculative.plan import Plan
from frostline.speculative.tree import DraftTree


class Scorer:
    """Scores whose argmax is the next token. A batch of greedy rows without rules costs nothing: logits are scores."""

    def __init__(self, rows: Rows, rows_B: Tensor, plan: Plan, *, noisy: bool = True) -> None:
        self._plan = plan
        self._sampling = rows.sampling(rows_B) if plan.sampled and noisy else None
        self._processor = Processor(rows.rules, rows_B, plan.rules) if plan.rules.any else None

    def __call__(
        self, logits_RC: Tensor, position_BN: Tensor, token_ids: Tensor | None = None, paths: Paths | None = None
    ) -> Tensor:
        """Scores [B * N, C] of the tokens that follow nodes at absolute positions `position_BN`.

        token_ids [B * N, C] names the candidates; None: they are the vocabulary. paths: what was drafted above each
        node, itself included; None when the nodes are roots. Noise and masks are those of the position that the next
        token will have.
        """
        batch, width = map(int, position_BN.shape)
        if self._processor is not None:
            candidates = int(logits_RC.shape[1])
            ids = None if token_ids is None else token_ids.view(batch, width, candidates)
            logits = logits_RC.view(batch, width, candidates)
            logits_RC = self._processor(logits, position_BN + 1, ids, paths).flatten(0, 1)
        if self._sampling is None:
            return logits_RC
        return perturb(
            logits_RC,
            self._sampling.repeat(width) if width > 1 else self._sampling,
            position_BN.flatten() + 1,
            token_ids,
            sampled=True,
            filtered=self._plan.filtered,
            max_top_k=self._plan.max_top_k,
        )


def paths_of(tree: DraftTree) -> Paths | None:
    """Every node's ancestors-or-self below the root, whose own token the row's counts hold already."""
    nodes = int(tree.token_BN.shape[1])
    if nodes == 1:
        return None
    bit_A = torch.arange(1, nodes, device=tree.token_BN.device)
    above_BNA = (tree.ancestors_BN.unsqueeze(2) >> bit_A) & 1
    return Paths(token=tree.token_BN[:, None, 1:].expand(-1, nodes, -1), counts=above_BNA > 0)
