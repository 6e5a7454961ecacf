"""Device sides without a model, to measure what is left: one that answers at once, and one that takes a set time.

Knows steps and results; every token is the same one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from frostline.speculative.step import RunResult, SeedResult, Step, StepResult
from frostline.types import Group

TOKEN = 7


class InstantExecutor:
    """Accepts half of what it is offered, at once. seconds: how long a step sleeps before, standing for the device."""

    def __init__(
        self, *, max_num_seqs: int, max_context: int, verify_width: int, page_size: int = 16, seconds: float = 0.0
    ) -> None:
        pages = max_num_seqs * (-(-(max_context + 2 * verify_width) // page_size)) + 1
        self.num_rows, self.page_size = max_num_seqs + 1, page_size
        self.num_pages: Mapping[Group, int] = {"sliding": pages, "full": pages}
        self.window, self.max_context, self.verify_width = 512, max_context, verify_width
        self._seconds = seconds
        self._depths: dict[int, int] = {}

    def launch(self, step: Step) -> StepResult:
        if self._seconds:
            time.sleep(self._seconds)
        for init in step.inits:
            self._depths[init.row] = init.depth
        seeds = tuple(SeedResult(row=chunk.row, token=TOKEN, finite=True) for chunk in step.prefill if chunk.last)
        return StepResult(seeds=seeds, runs=tuple(self._run(row, step.plan.num_steps) for row in step.rows))

    def collect(self, flight: StepResult) -> StepResult:
        return flight

    def _run(self, row: int, num_steps: int) -> RunResult:
        drafted = min(self._depths[row], num_steps)
        return RunResult(row=row, tokens=(TOKEN,) * (drafted // 2 + 1), drafted=drafted, finite=True)
