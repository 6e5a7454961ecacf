"""The shape of one iteration: how deep, how wide, which sampling features its batch needs. Host values, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from frostline.runner.rules import RuleFeatures


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One batch's draft and verify geometry.

    num_steps `K`, topk `k`, verify_width `N` as in SpeculativeConfig; `K = 0` is plain decoding with one node.
    sampled: some row has a temperature above 0. filtered: some row uses top-k, top-p or min-p.
    max_top_k: every sampled row has `1 <= top_k <= max_top_k`, or neither top-k nor top-p; 0 when that does not hold.
    rules: penalties, biases and masks that some row has. logprobs: the most log-probabilities that some row wants
    beside each token's own; -1 when none wants any.
    coupled: drafts use the target's noise. draft_offset: the assistant's constant position is `P + draft_offset`.
    """

    num_steps: int
    topk: int = 1
    verify_width: int
    sampled: bool = False
    filtered: bool = False
    max_top_k: int = 0
    rules: RuleFeatures = field(default_factory=RuleFeatures)
    logprobs: int = -1
    coupled: bool = True
    draft_offset: int = 0

    @property
    def is_chain(self) -> bool:
        return self.topk == 1
