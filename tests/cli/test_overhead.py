from __future__ import annotations

import json

import pytest

from frostline.cli.instant import TOKEN, InstantExecutor
from frostline.config import EngineConfig, SpeculativeConfig
from frostline.llm import LLM
from frostline.types import SamplingParams
from tests.cli.conftest import Run


def test_overhead_measures_both_loops(run: Run) -> None:
    result = run("bench", "overhead", "--requests", "3", "--ticks", "20", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.stderr
    value = json.loads(result.stdout)
    sync, overlap = value["schedules"]
    assert (sync["schedule"], overlap["schedule"]) == ("sync", "overlap")
    for row in (sync, overlap):
        assert row["loop_ms"] > 0 and row["stream_ms"] > 0 and set(row["parts_ms"]) >= {"schedule", "update"}
    # 10 ms each: their sum, and little more than one of them. Other tests run beside this one, hence the room.
    assert sync["injected_ms"] > 19 > overlap["injected_ms"] >= 10


def test_overhead_as_a_table(run: Run) -> None:
    result = run("bench", "overhead", "--requests", "2", "--ticks", "5", "--rounds", "1", "--num-steps", "0")
    assert result.exit_code == 0 and "10 host + 10 device" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--requests", "0"), "--requests must be at least 1"),
        (("--ticks", "0"), "--ticks must be at least 1"),
        (("--ticks", "99999"), "take fewer ticks"),
        (("--num-steps", "9"), "num_steps must be 0"),
    ],
)
def test_overhead_refuses(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run("bench", "overhead", *args)
    assert result.exit_code == 2 and message in result.stderr


def test_the_instant_device_serves_an_engine() -> None:
    device = InstantExecutor(max_num_seqs=2, max_context=64, verify_width=5)
    llm = LLM.from_executor(device, speculative=SpeculativeConfig(), engine=EngineConfig(schedule="overlap"))
    outputs = llm.generate([[9], [9, 9], [9]], SamplingParams(max_tokens=10, ignore_eos=True))
    assert [output.outputs[0].token_ids for output in outputs] == [(TOKEN,) * 10] * 3
    assert outputs[0].stats.accept_length == 3.0
