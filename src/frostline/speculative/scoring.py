"""The one sampling rule (architecture 4.3) for a batch under a plan; target and drafter each have a scorer."""

from __future__ import annotations

from torch import Tensor

from frostline.runner.rows import Rows
from frostline.runner.sampling import perturb
from frostline.speculative.plan import Plan


class Scorer:
    """Scores whose argmax is the next token. A batch of greedy rows costs nothing: its logits are its scores."""

    def __init__(self, rows: Rows, rows_B: Tensor, plan: Plan, *, noisy: bool = True) -> None:
        self._plan = plan
        self._sampling = rows.sampling(rows_B) if plan.sampled and noisy else None

    def __call__(self, logits_RC: Tensor, position_BN: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Scores [B * N, C] of the tokens that follow nodes at absolute positions `position_BN`.

        token_ids [B * N, C] names the candidates; None: they are the vocabulary. The noise is that of the position
        that the next token will have.
        """
        if self._sampling is None:
            return logits_RC
        width = int(position_BN.shape[1])
        return perturb(
            logits_RC,
            self._sampling.repeat(width) if width > 1 else self._sampling,
            position_BN.flatten() + 1,
            token_ids,
            sampled=True,
            filtered=self._plan.filtered,
            max_top_k=self._plan.max_top_k,
        )
