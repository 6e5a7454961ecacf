"""The plan of a batch: its deepest row's depth and the union of its rows' features.

Knows sampling parameters and own depths; nothing of pages, tokens or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frostline.config import SpeculativeConfig, tree_capacity
from frostline.engine.request import Request
from frostline.speculative.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Planner:
    """draft_offset: 0 when the assistant's constant position is `P`, -1 when it is `P - 1`."""

    speculative: SpeculativeConfig
    draft_offset: int = 0

    def plan(self, iterating: Sequence[Request], *, prefilling: Sequence[Request] = ()) -> Plan:
        """Depth comes from the rows that iterate; features from all: a prefilled row is seeded in the same step."""
        config = self.speculative
        steps = max((request.depth for request in iterating), default=0)
        topk = config.topk if steps else 1
        width = steps + 1
        if topk > 1:
            width = max(width, min(config.verify_width, tree_capacity(steps, topk)))
        everyone = (*iterating, *prefilling)
        return Plan(
            num_steps=steps,
            topk=topk,
            verify_width=width,
            sampled=any(request.params.is_sampled for request in everyone),
            filtered=any(request.params.is_filtered for request in everyone),
            coupled=config.draft_sampling == "coupled",
            draft_offset=self.draft_offset,
        )
