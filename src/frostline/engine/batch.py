"""One tick's work as the host keeps it: the step, and whose its rows are.

Knows requests and what the device side needs of them; nothing of queues, pages or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frostline.engine.request import Request
from frostline.engine.rules import resumed
from frostline.engine.stay import Stay
from frostline.speculative.step import PrefillChunk, RowInit, Step


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The requests and their stays travel with the work, by row: by the time its result is read, a row may have another
    owner, and a request another stay."""

    step: Step
    requests: Mapping[int, Request]
    stays: Mapping[int, Stay]

    def current(self, row: int) -> Request | None:
        """Whom the row's result is for; None when it comes late, since the request was over or preempted meanwhile."""
        request = self.requests[row]
        return request if request.stay is self.stays[row] else None


def row_init(request: Request) -> RowInit:
    """What an admitted request brings to its row."""
    params = request.params
    return RowInit(
        row=request.row,
        prompt_len=request.prompt_len,
        seed=request.seed,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        depth=request.depth,
        rules=resumed(request.logit_rules, request.output_ids),
    )


def next_chunk(request: Request, length: int) -> PrefillChunk:
    """The next `length` tokens to prefill, from now on scheduled."""
    stay, start = request.on_device, request.on_device.scheduled
    stay.scheduled = start + length
    last = stay.unscheduled == 0
    if last and not request.output_ids:
        request.expect(1)
    chunk = PrefillChunk(
        row=stay.row,
        start=start,
        tokens=request.tokens(start, start + length),
        last=last,
        bonus=request.output_ids[-1] if last and request.output_ids else None,
    )
    return request.logprobs.scored(chunk)
