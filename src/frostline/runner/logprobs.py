"""Log-probabilities of tokens under raw logits: the token's own, its rank, and the most likely ones beside it.

Raw means softcapped logits of the target before penalties, biases, masks, temperature and filters, as vLLM reports
them by default. Knows logits and tokens; nothing of where they stand.

Legend: R rows, V vocabulary, k most likely tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenScores(NamedTuple):
    """logprob, rank [R]; top_ids, top_logprobs [R, k] in descending order. Log-probabilities in the logits' dtype.

    rank: 1 for the most likely token; tokens of equal logits share the best rank among them.
    """

    logprob: Tensor
    rank: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def view(self, batch: int, each: int) -> TokenScores:
        """Rows as [batch, each]."""
        return TokenScores(*(tensor.view(batch, each, *tensor.shape[1:]) for tensor in self))

    @classmethod
    def cat(cls, parts: list[TokenScores]) -> TokenScores:
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


def score_tokens(logits_RV: Tensor, token_R: Tensor, top: int) -> TokenScores:
    """Scores of `token_R` int64; nothing of size [R, V] is kept, so rows may be given in parts."""
    total_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
    own_R1 = logits_RV.gather(1, token_R.unsqueeze(1))
    values_Rk, ids_Rk = logits_RV.topk(top, dim=-1)
    return TokenScores(
        logprob=(own_R1 - total_R1).squeeze(1),
        rank=(logits_RV > own_R1).sum(dim=-1) + 1,
        top_ids=ids_Rk,
        top_logprobs=values_Rk - total_R1,
    )
