"""A recorded iteration does what the function does: the same tokens, drafts, row state and KV rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frostline import LLM, RequestOutput, SamplingParams, SpeculativeConfig
from frostline.runner.graphs import TracedGraphs
from frostline.speculative import executor
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


class Padded(TracedGraphs):
    """Rounds batches up as CUDA graphs do."""

    def batch(self, rows: int) -> int:
        return -(-rows // 4) * 4


@pytest.mark.parametrize("mode", MODES)
def test_reported_20_padding_rows_of_a_recording_touch_only_row_0(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = run(MODES[mode], None)
    monkeypatch.setattr(executor, "graphs_for", lambda device, after: Padded(capture_after=after))
    outputs, recorded = run(MODES[mode], 1)
    assert [told(output) for output in outputs] == [told(output) for output in expected]
    assert recorded._device._graphs.captured > 0
    assert all(not state[0].any() for state in recorded._device._rows.tensors())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capture_after", [None, 1])
def test_reported_35_launching_reads_nothing_back(
    mode: str, capture_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal"):
                reads.append(name)
            return func(*args, **(kwargs or {}))

    launch = DeviceExecutor.launch

    def watched(self: DeviceExecutor, step: Step) -> Any:
        with Watch():
            return launch(self, step)

    monkeypatch.setattr(DeviceExecutor, "launch", watched)
    run(MODES[mode], capture_after)
    assert reads == []
    with Watch():
        torch.ones(1).item()
    assert reads == ["_local_scalar_dense"]


def test_shapes_are_recorded_once_they_are_used_often_and_few_are_kept() -> None:
    graphs, calls = TracedGraphs(capture_after=2, limit=2), []

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
