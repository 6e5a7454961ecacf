"""The overlapped loop on the bundled pair, its device side on a thread: tokens, text and drafts as from the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from frostline import LLM, RequestOutput, SamplingParams, SpeculativeConfig
from frostline.config import Schedule
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import DraftNodes, Executor
from frostline.speculative.worker import WorkerExecutor
from tests.equality.bundled import PLAIN, TARGET, bundle, differing, sampled
from tests.equality.recording import RecordingExecutor, Track
from tests.equality.test_failures import RARE, clean_prompts, poisoned

MODES = {
    "plain": PLAIN,
    "chain": SpeculativeConfig(num_steps=4),
    "tree": SpeculativeConfig(num_steps=4, topk=3, num_draft_tokens=16),
}
WRAPS: dict[Schedule, Callable[[Executor], Executor]] = {"sync": lambda device: device, "overlap": WorkerExecutor}


def play(
    config: SpeculativeConfig, schedule: Schedule, capture_after: int | None
) -> tuple[list[RequestOutput], list[Track], int]:
    """Nine requests, greedy and sampled, on three rows, the prompts in chunks; outputs, tracks and late runs."""
    recorders: list[RecordingExecutor] = []

    def wrap(device: DeviceExecutor) -> Executor:
        recorders.append(RecordingExecutor(device))
        return WRAPS[schedule](recorders[0])  # type: ignore[arg-type]

    llm = bundle().llm(
        config,
        wrap=wrap,
        batch=3,
        context=256,
        kv_pages=40,
        schedule=schedule,
        max_prefill_tokens=23,
        capture_after=capture_after,
    )
    prompts = [list(prompt.ids) for prompt in bundle().held_out()[:9]]
    params = [
        replace(
            sampled(n, max_tokens=5 * n + 1) if n % 2 else SamplingParams(temperature=0.0, max_tokens=5 * n + 1),
            ignore_eos=n % 3 == 0,
        )
        for n in range(9)
    ]
    outputs = llm.generate(prompts, params)
    return outputs, recorders[0].tracks, llm.stats().late_runs


def drafted(outputs: list[RequestOutput], tracks: list[Track]) -> list[list[DraftNodes | None]]:
    """The nodes of every run that counted; what came late is behind them."""
    pairs = zip(outputs, tracks, strict=True)
    return [[one.run.nodes for one in track.iterations[: output.stats.iterations]] for output, track in pairs]


@pytest.mark.parametrize("capture_after", [None, 2])
@pytest.mark.parametrize("mode", MODES)
def test_overlap_equals_sync_drafts_included(mode: str, capture_after: int | None) -> None:
    expected, expected_tracks, none_late = play(MODES[mode], "sync", capture_after)
    found, tracks, late = play(MODES[mode], "overlap", capture_after)
    assert differing(found, expected) == []
    assert [output.stats for output in found] == [output.stats for output in expected]
    assert drafted(found, tracks) == drafted(expected, expected_tracks)
    runs = sum(len(track.iterations) for track in tracks)
    assert runs == sum(output.stats.iterations for output in found) + late
    assert none_late == 0 < late


@pytest.mark.parametrize("mode", MODES)
def test_nan_fails_one_request_alone_with_a_late_run_behind_it(mode: str) -> None:
    """So few pages exist that the next requests get the failed one's."""
    prompts = clean_prompts(6, RARE)
    bad = (*prompts[0][:20], RARE, *prompts[0][20:])
    mixed = [prompts[0], bad, *prompts[1:4], bad, *prompts[4:]]
    rows = [sampled(n, max_tokens=14) if n % 2 else SamplingParams(temperature=0.0, max_tokens=14) for n in range(8)]
    llm = bundle().llm(
        MODES[mode], wrap=WorkerExecutor, pair=poisoned(RARE), batch=3, context=256, kv_pages=3 * 13, schedule="overlap"
    )
    found = llm.generate(mixed, rows)
    failed = [n for n, output in enumerate(found) if output.outputs[0].finish_reason == "error"]
    assert failed == [1, 5]
    clean = [n for n in range(8) if n not in failed]
    expected = bundle().llm(PLAIN, batch=1, context=256).generate([mixed[n] for n in clean], [rows[n] for n in clean])
    assert differing([found[n] for n in clean], expected) == []


def test_an_llm_on_a_cpu_runs_its_device_side_on_a_thread() -> None:
    prompts = [list(prompt.ids) for prompt in bundle().held_out()[:3]]
    params = [sampled(seed, max_tokens=9) for seed in range(3)]
    sync, overlap = (
        LLM(TARGET, dtype="float64", max_model_len=256, max_num_seqs=2, schedule=schedule) for schedule in WRAPS
    )
    assert isinstance(sync._engine._executor, DeviceExecutor)
    assert isinstance(overlap._engine._executor, WorkerExecutor)
    assert differing(overlap.generate(prompts, params), sync.generate(prompts, params)) == []
