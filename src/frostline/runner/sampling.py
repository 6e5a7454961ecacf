"""The one sampling rule: filter the logits, add noise that depends on (seed, position, token) only, take the best.

What it is for: target rows at every node and draft rows alike, so that equal logits give equal tokens whatever was
drafted (architecture 4.3), and so that drafts meet the noise their verification will meet. What it does not know:
requests, trees, where logits come from, penalties and masks (they are in the logits already).

Every filter is a threshold on the tempered logits, found per row: a value is kept when it reaches all three, which
keeps ties at each of them. Probability mass is summed as fixed-point integers, because integer sums do not depend on
order, length or device: a batch's company never moves a row's top-p cut.

All functions work in the dtype of the logits, float32 or float64, and read nothing back to the host.

Legend: R rows (requests, or requests x nodes), C candidates (the vocabulary, or the draft head's ids), L ranks read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.kernels.philox import token_bits

_UNIFORM_BITS = 23
# A weight is at most 1, so a row of 2^20 candidates sums to at most 2^62; what is lost per candidate is 2^-42.
_MASS_BITS = 42
# Keeps logits / temperature finite; noise is nothing beside any gap long before this, so the token is the same.
_COLDEST = 1e-30


@dataclass(frozen=True, kw_only=True)
class SamplingRows:
    """How each row samples: temperature, top_p, min_p [R] in the logit dtype, top_k [R] and seed [R] int64.

    temperature 0 is greedy and switches the row's filters off. top_k 0 or below, top_p 1 and min_p 0 are off.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor

    def repeat(self, n: int) -> SamplingRows:
        """Every row `n` times, neighbours kept together: [R * n], for the nodes of a verify forward."""
        return SamplingRows(
            temperature=self.temperature.repeat_interleave(n),
            top_k=self.top_k.repeat_interleave(n),
            top_p=self.top_p.repeat_interleave(n),
            min_p=self.min_p.repeat_interleave(n),
            seed=self.seed.repeat_interleave(n),
        )


def gumbel(seed_R: Tensor, position_R: Tensor, token_ids: Tensor | range, dtype: torch.dtype) -> Tensor:
    """Standard Gumbel noise [R, C] in `dtype`: -log(-log(u)), u = (x + 0.5) / 2^23 from 23 random bits x.

    seed_R, position_R: int64; token_ids: int64 [C] or [R, C], or a range (four neighbours then cost one evaluation).
    In float32 u runs from 2^-24 to 1 - 2^-24 exactly, so the noise is finite: -2.82 to 16.64. With 32 bits the largest
    u would round to 1.0 and the noise to infinity.
    """
    bits_RC = token_bits(seed_R, position_R, token_ids) >> (32 - _UNIFORM_BITS)
    return bits_RC.to(dtype).add_(0.5).mul_(2.0**-_UNIFORM_BITS).log_().neg_().log_().neg_()


def process(logits_RC: Tensor, rows: SamplingRows, *, max_top_k: int = 0) -> Tensor:
    """Tempered and filtered logits [R, C]; what is dropped is -inf, rows of temperature 0 come back unchanged.

    In this order: division by temperature; top-k; top-p over the renormalised rest, the smallest set of highest values
    whose probability reaches top_p; min-p against the most probable. Ties at a threshold are kept.

    max_top_k: a bound that the host knows: every sampled row has `1 <= top_k <= max_top_k`, or neither top_k nor top_p.
    Then ranks past it are not looked at; the result is the same bit for bit. 0 means no bound.
    """
    tempered_RC = _temper(logits_RC, rows)
    rank_R1 = _rank_threshold(tempered_RC, rows, max_top_k)
    min_p_R1 = tempered_RC.amax(dim=-1, keepdim=True) + rows.min_p[:, None].log()
    threshold_R1 = torch.where(rows.temperature[:, None] > 0, torch.maximum(rank_R1, min_p_R1), -torch.inf)
    return torch.where(tempered_RC >= threshold_R1, tempered_RC, -torch.inf)


def perturb(
    logits_RC: Tensor,
    rows: SamplingRows,
    position_R: Tensor,
    token_ids: Tensor | range | None = None,
    *,
    sampled: bool,
    filtered: bool,
    max_top_k: int = 0,
) -> Tensor:
    """Scores [R, C] whose argmax is the token at absolute position `position_R` int64 of each row.

    token_ids: the id of each candidate, [C] or [R, C]; a range, or None for 0 to C - 1, is the cheap way to name
    neighbouring ids. sampled False: no row has a temperature above 0, the logits come back. filtered False: no row has
    a filter on. max_top_k: as in `process`.
    """
    assert rows.temperature.dtype == logits_RC.dtype, (rows.temperature.dtype, logits_RC.dtype)
    if not sampled:
        return logits_RC
    kept_RC = process(logits_RC, rows, max_top_k=max_top_k) if filtered else _temper(logits_RC, rows)
    ids = range(int(logits_RC.shape[-1])) if token_ids is None else token_ids
    noise_RC = gumbel(rows.seed, position_R, ids, logits_RC.dtype)
    return torch.where(rows.temperature[:, None] > 0, noise_RC.add_(kept_RC), logits_RC)


def choose(score_RC: Tensor) -> Tensor:
    """Index [R] int64 of the best score of each row, the lowest index on equal scores."""
    return score_RC.argmax(dim=-1)


def _temper(logits_RC: Tensor, rows: SamplingRows) -> Tensor:
    """Logits over temperature; rows of temperature 0 are divided by 1."""
    divisor_R = torch.where(rows.temperature > 0, rows.temperature.clamp(min=_COLDEST), 1.0)
    return logits_RC / divisor_R[:, None]


def _rank_threshold(tempered_RC: Tensor, rows: SamplingRows, max_top_k: int) -> Tensor:
    """Smallest value [R, 1] that top-k and then top-p keep; -inf where neither is on.

    Only the first `top_k` ranks are read. Ties with rank `top_k` that lie beyond it are counted, not listed: all have
    that rank's weight, and a cut among them is a cut at their common value.
    """
    candidates = int(tempered_RC.shape[-1])
    if 0 < max_top_k < candidates:
        ranked_RL = tempered_RC.topk(max_top_k, dim=-1).values
    else:
        ranked_RL = tempered_RC.sort(dim=-1, descending=True).values
    ranks = int(ranked_RL.shape[-1])
    by_k_R1 = (rows.top_k > 0)[:, None]
    by_p_R1 = (rows.top_p < 1)[:, None]
    last_R1 = torch.where(by_k_R1, rows.top_k[:, None].clamp(max=ranks), ranks) - 1
    top_k_R1 = torch.where(by_k_R1, ranked_RL.gather(1, last_R1), -torch.inf)

    weight_RL = (ranked_RL - ranked_RL[:, :1]).exp()
    mass_RL = (weight_RL * 2.0**_MASS_BITS).to(torch.int64)
    reached_RL = mass_RL.cumsum(dim=-1)
    kept_R1 = (tempered_RC >= top_k_R1).sum(dim=-1, keepdim=True)
    total_R1 = reached_RL.gather(1, last_R1) + (kept_R1 - 1 - last_R1) * mass_RL.gather(1, last_R1)
    needed_R1 = (rows.top_p[:, None].double() * total_R1.double()).ceil().to(torch.int64)
    cut_R1 = (reached_RL < needed_R1).sum(dim=-1, keepdim=True).minimum(last_R1)
    return torch.where(by_p_R1, ranked_RL.gather(1, cut_R1), top_k_R1)
