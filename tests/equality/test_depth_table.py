"""Depth by load on the bundled pair: as the batch shrinks the drafts deepen, and the tokens stay those of plain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frostline import DepthTable, SamplingParams, SpeculativeConfig
from tests.equality.bundled import PLAIN, bundle, differing, sampled
from tests.equality.recording import RecordingExecutor


@pytest.mark.parametrize("topk", [1, 2])
def test_reported_34_depth_follows_the_batch_and_the_tokens_do_not(topk: int) -> None:
    table = DepthTable.parse("1:6,2:4,4:1,5:0")
    config = SpeculativeConfig.derive(topk=topk, depth_table=table)
    prompts = [list(prompt.ids) for prompt in bundle().held_out()[:5]]
    lengths = (6, 14, 22, 40, 60)
    params = [
        sampled(n, max_tokens=length) if n % 2 else SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        for n, length in enumerate(lengths)
    ]
    # Own depths are bounds too, whatever the table says.
    params[4] = replace(params[4], num_steps=5)
    recorders: list[RecordingExecutor] = []

    def wrap(device: object) -> RecordingExecutor:
        recorders.append(RecordingExecutor(device))  # type: ignore[arg-type]
        return recorders[0]

    llm = bundle().llm(config, batch=5, context=256, wrap=wrap)
    outputs = llm.generate(prompts, params)
    expected = (
        bundle().llm(PLAIN, batch=1, context=256).generate(prompts, [replace(one, num_steps=None) for one in params])
    )
    assert differing(outputs, expected) == []
    runs = [one.run for track in recorders[0].tracks for one in track.iterations]
    assert all(len(run.tokens) - 1 <= run.drafted for run in runs)
    depths = {run.drafted for run in runs}
    assert {0, 1, 4, 5} <= depths <= {0, 1, 4, 5, 6}
    assert llm.stats().emitted_tokens == sum(lengths)
