"""NVTX ranges of an iteration's stages: named on a GPU, absent on a CPU and from what is recorded there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.cuda import nvtx

from frostline import SamplingParams, SpeculativeConfig
from frostline.config import EngineConfig
from frostline.llm import LLM
from frostline.runner.spans import nvtx_ticks, spec_stage_span
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.pair import load_pair
from tests.equality.bundled import TARGET, bundle

STAGES = ["draft", "verify", "accept", "seed"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the ranges, with those that they stand in before them, in the order in which they were opened."""
    names: list[str] = []
    inside: list[str] = []

    @contextmanager
    def watched(name: str) -> Iterator[None]:
        inside.append(name.removeprefix("frostline."))
        names.append("/".join(inside))
        try:
            yield
        finally:
            inside.pop()

    monkeypatch.setattr(nvtx, "range", watched)
    return names


def test_a_span_on_a_gpu_is_a_range_of_its_stage(opened: list[str]) -> None:
    with spec_stage_span("verify", "cuda"), nvtx_ticks("tick"), nvtx_ticks("collect", step=1):
        assert opened == ["verify", "verify/tick"]


@pytest.mark.parametrize("capture_after", [None, 1])
def test_a_cpu_opens_none_recorded_or_not(opened: list[str], capture_after: int | None) -> None:
    llm = bundle().llm(SpeculativeConfig(num_steps=2), batch=1, context=128, capture_after=capture_after)
    llm.generate([list(bundle().held_out()[0].ids)], SamplingParams(temperature=0.0, max_tokens=12))
    assert opened == []


@pytest.mark.gpu
def test_a_gpu_opens_every_stage_inside_its_tick(opened: list[str]) -> None:
    config = SpeculativeConfig(num_steps=2)
    llm = LLM(TARGET, device="cuda", speculative=config, max_model_len=128, max_num_seqs=2, capture_after=None)
    llm.generate([list(bundle().held_out()[0].ids)], SamplingParams(temperature=0.0, max_tokens=12))
    assert "tick/prefill" in opened
    at = opened.index("tick/iterate")
    assert opened[at : at + 5] == ["tick/iterate", *(f"tick/iterate/{stage}" for stage in STAGES)]


@pytest.mark.gpu
def test_ranges_may_be_opened_while_a_graph_is_captured() -> None:
    """With the real ranges: those of a capture leave nothing in the graph, and a replay gives the same tokens."""
    pair = load_pair(TARGET, "auto", device="cuda", dtype="float32")
    ids = [list(prompt.ids) for prompt in bundle().held_out()[:2]]
    found = []
    for capture_after in (None, 0):
        engine = EngineConfig(max_num_seqs=2, max_model_len=256, capture_after=capture_after)
        config = SpeculativeConfig(num_steps=2)
        device = DeviceExecutor(pair, speculative=config, engine=engine)
        llm = LLM.from_executor(device, speculative=config, engine=engine)
        outputs = llm.generate(ids, SamplingParams(temperature=0.0, max_tokens=40))
        found.append([output.outputs[0].token_ids for output in outputs])
    torch.cuda.synchronize()
    assert found[0] == found[1]
