"""A recorded iteration does what the function does: the same tokens, drafts, row state and KV rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from frostline import LLM, RequestOutput, SamplingParams, SpeculativeConfig
from frostline.runner.graphs import Graphs
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import Step, StepResult
from tests.equality.bundled import PLAIN, bundle, sampled, told

MODES = {
    "plain": PLAIN,
    "chain": SpeculativeConfig(num_steps=4),
    "tree": SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16),
}


class Watching:
    """Passes steps on and keeps their results."""

    def __init__(self, device: DeviceExecutor) -> None:
        self._device = device
        self.results: list[StepResult] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, step: Step) -> Any:
        return self._device.launch(step)

    def collect(self, flight: Any) -> StepResult:
        self.results.append(self._device.collect(flight))
        return self.results[-1]


def run(config: SpeculativeConfig, capture_after: int | None) -> tuple[list[RequestOutput], Watching]:
    """Seven requests of mixed lengths and sampling, three at a time, so that batches shrink and rows are reused."""
    own = bundle()
    engine = replace(own.executor(config, batch=3, context=256)[1], capture_after=capture_after)
    watching = Watching(DeviceExecutor(own.pair, speculative=config, engine=engine, record_nodes=True))
    llm = LLM.from_executor(
        watching, speculative=config, tokenizer=own.tokenizer, engine=engine, defaults=own.defaults, vocab_size=4096
    )
    prompts = [list(prompt.ids) for prompt in own.held_out()[:7]]
    params = [
        sampled(seed, max_tokens=10 + 3 * seed)
        if seed % 2
        else SamplingParams(temperature=0.0, seed=seed, max_tokens=10 + 3 * seed)
        for seed in range(len(prompts))
    ]
    return llm.generate(prompts, params), watching


@pytest.mark.parametrize("mode", MODES)
def test_a_recorded_iteration_equals_the_function(mode: str) -> None:
    expected, eager = run(MODES[mode], None)
    outputs, recorded = run(MODES[mode], 0)
    graphs = recorded._device._graphs
    assert graphs is not None and graphs.captured > 2
    assert [told(output) for output in outputs] == [told(output) for output in expected]
    # Tokens alone would hide a broken draft: the drafted nodes of every run are equal too.
    assert recorded.results == eager.results
    for ours, reference in zip(recorded._device._rows.tensors(), eager._device._rows.tensors(), strict=True):
        assert torch.equal(ours.isfinite(), reference.isfinite()) and (ours - reference).abs().max() < 1e-9


def test_shapes_are_recorded_once_they_are_used_often_and_few_are_kept() -> None:
    graphs, calls = Graphs(capture_after=2, limit=2), []

    def function(rows_B: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(rows_B))
        state.index_add_(0, rows_B, torch.ones(len(rows_B)))
        return (state.index_select(0, rows_B),)

    state = torch.zeros(4)
    for _ in range(5):
        (value,) = graphs.run("a", function, torch.tensor([3]), (state,))
    # Two plain calls, one to record (over the padding row), then replays; the state saw all five.
    assert calls == [1, 1, 1] and value.item() == state[3].item() == 5.0
    for key in "bc":
        for _ in range(3):
            graphs.run(key, function, torch.tensor([1, 2]), (state,))
    assert graphs.captured == 2
