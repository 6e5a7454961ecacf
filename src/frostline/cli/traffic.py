"""Serves a list of requests as clients would send them, and notes when each token came.

Closed loop: so many clients, each sending its next request when the last one is answered. With arrival times it is an
open loop: requests come when they come, and wait where too many are open. Knows the engine as something that streams.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from frostline.cli.loading import Generator
from frostline.cli.workload import Work
from frostline.types import RequestOutput

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(kw_only=True)
class Trace:
    """When things happened to one request. sent: its arrival, or the moment when a client sent it.

    gaps: seconds per token between pieces, one for each token after the first piece: a run of three tokens 30 ms after
    the last counts as three gaps of 10 ms.
    """

    sent: float
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    output: RequestOutput | None = None

    def receive(self, tokens: int, now: float) -> None:
        if not self.first:
            self.first = now
        elif tokens:
            self.gaps += [(now - self.last) / tokens] * tokens
        self.last = now


@dataclass(frozen=True, kw_only=True)
class Served:
    """One pass over all requests. seconds: from the first one's sending to the last token."""

    traces: tuple[Trace, ...]
    seconds: float

    @property
    def outputs(self) -> list[RequestOutput]:
        return [trace.output for trace in self.traces if trace.output is not None]

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        return [output.outputs[0].token_ids for output in self.outputs]

    def latencies(self) -> dict[str, dict[str, float]]:
        """Percentiles in milliseconds: time to first token, between tokens, and from sending to the last token."""
        return {
            "ttft_ms": percentiles([trace.first - trace.sent for trace in self.traces]),
            "inter_token_ms": percentiles([gap for trace in self.traces for gap in trace.gaps]),
            "end_to_end_ms": percentiles([trace.last - trace.sent for trace in self.traces]),
        }


def serve(llm: Generator, work: Sequence[Work], *, concurrency: int, arrivals: Sequence[float] | None = None) -> Served:
    """Every request once. concurrency: most that are open together. arrivals: seconds after the start, rising."""
    traces: dict[int, Trace] = {}
    sent = 0
    start = time.perf_counter()
    with closing(llm.live(text=False)) as live:
        while sent < len(work) or live.num_open:
            now = time.perf_counter()
            while sent < len(work) and live.num_open < concurrency:
                due = now if arrivals is None else start + arrivals[sent]
                if due > now:
                    break
                number = live.add(work[sent].prompt, work[sent].params)
                traces[number] = Trace(sent=due)
                sent += 1
            if not live.num_open and arrivals is not None:
                time.sleep(max(0.0, start + arrivals[sent] - now))
                continue
            pieces = live.step()
            now = time.perf_counter()
            for piece in pieces:
                trace = traces[piece.prompt_index]
                trace.receive(len(piece.token_ids), now)
                trace.output = piece.output or trace.output
    return Served(traces=tuple(traces.values()), seconds=time.perf_counter() - start)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and the mean, in milliseconds; linear between neighbours. Empty for no values."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    found: dict[str, Any] = {}
    for name, share in QUANTILES.items():
        at = share * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        found[name] = round((ordered[low] + (ordered[high] - ordered[low]) * (at - low)) * 1000, 3)
    found["mean"] = round(sum(ordered) / len(ordered) * 1000, 3)
    return found
