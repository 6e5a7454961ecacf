"""Watching a tick: the timeline shows what ran when and changes nothing; an engine without a watch records nothing."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from frostline import ConfigError, SamplingParams, SpeculativeConfig, Timeline
from frostline.config import EngineConfig, Schedule
from frostline.engine.timeline import Span
from frostline.llm import LLM
from frostline.runner.spans import both, nvtx_ticks, spec_stage_span, unwatched
from frostline.speculative.worker import WorkerExecutor
from tests.engine.fake_executor import FakeExecutor, hashed
from tests.text.byte_level import byte_ids


def recorded(schedule: Schedule) -> Timeline:
    timeline = Timeline()
    device = FakeExecutor(hashed(byte_ids("ab")))
    llm = LLM.from_executor(
        WorkerExecutor(device, watch=timeline.span),
        speculative=SpeculativeConfig(num_steps=0),
        engine=EngineConfig(schedule=schedule),
        timeline=timeline,
    )
    llm.generate([[40], [41, 42]], SamplingParams(max_tokens=9, seed=1))
    assert llm.stats().steps == len(device.steps) > 3
    return timeline


def of(timeline: Timeline, name: str) -> dict[int | None, Span]:
    found = {span.step: span for span in timeline.spans if span.name == name}
    assert len(found) == sum(span.name == name for span in timeline.spans)
    return found


@pytest.mark.parametrize("schedule", ["sync", "overlap"])
def test_under_overlap_step_n_plus_1_is_launched_before_step_n_is_collected(schedule: Schedule) -> None:
    timeline = recorded(schedule)
    launches, collects, updates, device = (of(timeline, name) for name in ("launch", "collect", "update", "device"))
    assert set(launches) == set(collects) == set(updates) == set(device) == set(range(len(launches)))
    for step in range(len(launches)):
        assert launches[step].start <= device[step].start <= device[step].end <= collects[step].end
        assert collects[step].end <= updates[step].start
        assert device[step].thread != launches[step].thread
    ahead = [launches[step + 1].start < collects[step].start for step in range(len(launches) - 1)]
    assert all(ahead) if schedule == "overlap" else not any(ahead)


def test_a_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    timeline = recorded("overlap")
    timeline.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    complete = [event for event in events if event["ph"] == "X"]
    assert len(names) == 2 and len(complete) == len(timeline.spans)
    assert {event["name"] for event in complete} == {"tick", "schedule", "launch", "collect", "update", "device"}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] in names for event in complete)
    ticks = [event for event in complete if event["name"] == "tick"]
    for event in complete:
        if event["name"] in ("schedule", "launch", "collect", "update"):
            # Times are rounded to a nanosecond.
            inside = [t for t in ticks if t["ts"] - 0.002 <= event["ts"] <= t["ts"] + t["dur"] + 0.002]
            assert inside, event
    with pytest.raises(ConfigError, match="name another"):
        timeline.write(tmp_path / "no" / "such" / "trace.json")


def test_an_empty_timeline_is_a_trace_too() -> None:
    assert Timeline().as_json()["traceEvents"] == []


def test_stage_spans_cost_nothing_on_a_cpu() -> None:
    assert spec_stage_span("draft", "cpu") is spec_stage_span("tick", "cpu") is unwatched("tick")
    assert isinstance(nvtx_ticks("collect", step=3), nullcontext)


def test_both_tell_both() -> None:
    seen: list[str] = []

    def watch(label: str, name: str, step: int | None) -> AbstractContextManager[object]:
        seen.append(f"{label} {name} {step}")
        return nullcontext()

    pair = both(lambda name, step=None: watch("a", name, step), lambda name, step=None: watch("b", name, step))
    with pair("launch", step=2):
        seen.append("inside")
    assert seen == ["a launch 2", "b launch 2", "inside"]
