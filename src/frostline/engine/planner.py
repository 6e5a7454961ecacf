"""The plan of a batch: its deepest row's depth, capped by load, and the union of its rows' features.

Knows sampling parameters and own depths; nothing of pages, tokens or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from frostline.config import SpeculativeConfig, tree_capacity
from frostline.engine.alarm import AcceptanceAlarm
from frostline.engine.logprobs import batch_size_of
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.runner.rules import RuleFeatures
from frostline.speculative.plan import Plan
from frostline.speculative.step import RunResult
from frostline.types import SamplingParams

# Nodes of one verify forward over all rows. Their float32 logits are kept at once: 2,048 x 262,144 are 2.1 GB.
MAX_NODES = 2048


@dataclass(frozen=True, kw_only=True)
class Planner:
    """offset: where the assistant's queries sit. It and the alarm learn from what `observe` is told."""

    speculative: SpeculativeConfig
    offset: DraftOffset
    alarm: AcceptanceAlarm = field(default_factory=AcceptanceAlarm)

    def plan(self, iterating: Sequence[Request], *, prefilling: Sequence[Request] = ()) -> Plan:
        """Depth comes from the rows that iterate; features from all: a prefilled row is seeded in the same step.

        The depth table caps it for all of them. A batch so large that its nodes would pass MAX_NODES drafts less wide,
        then less deep. The output is the same.
        """
        config = self.speculative
        most = MAX_NODES // max(1, len(iterating))
        steps = min(max((request.depth for request in iterating), default=0), max(0, most - 1))
        if config.depth_table is not None and iterating:
            steps = min(steps, config.depth_table.depth(len(iterating)))
        topk = config.topk if steps else 1
        width = steps + 1
        if topk > 1:
            width = max(width, min(config.verify_width, tree_capacity(steps, topk), most))
        everyone = (*iterating, *prefilling)
        return Plan(
            num_steps=steps,
            topk=topk,
            verify_width=width,
            sampled=any(request.params.is_sampled for request in everyone),
            filtered=any(request.params.is_filtered for request in everyone),
            max_top_k=_max_top_k([request.params for request in everyone if request.params.is_sampled]),
            rules=_rules(everyone),
            logprobs=batch_size_of(request.params.logprobs for request in everyone),
            coupled=config.draft_sampling == "coupled",
            draft_offset=self.offset.next() if steps else 0,
        )

    def observe(self, plan: Plan, runs: Sequence[RunResult]) -> None:
        """What came of a plan: depths offered and accepted."""
        finite = [run for run in runs if run.finite]
        if plan.num_steps and finite:
            accepted = sum(len(run.tokens) - 1 for run in finite)
            self.offset.record(plan.draft_offset, offered=sum(run.drafted for run in finite), accepted=accepted)
            drafted = [run for run in finite if run.drafted]
            self.alarm.record(offered=len(drafted), accepted=sum(len(run.tokens) > 1 for run in drafted))


def _rules(requests: Iterable[Request]) -> RuleFeatures:
    """What the rows' next tokens need; what the host knows lags, so a mask may be kept a little longer than needed."""
    features = RuleFeatures()
    for request in requests:
        if request.logit_rules is not None:
            features |= request.logit_rules.features_at(request.known)
    return features


def _max_top_k(sampled: Sequence[SamplingParams]) -> int:
    """The largest top_k, when no row needs more of the vocabulary than its own top_k to sample by its rule; else 0."""
    if any(params.top_k < 1 and params.top_p < 1.0 for params in sampled):
        return 0
    return max((params.top_k for params in sampled if params.top_k > 0), default=0)
