"""On a CUDA device: launching never waits, and recorded, overlapped and plain decoding give the same tokens."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from frostline import LLM, SamplingParams, SpeculativeConfig
from frostline.cli.heldout import held_out
from frostline.config import Schedule
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import Step

pytestmark = pytest.mark.gpu

PLAIN = SpeculativeConfig(num_steps=0)
CHAIN = SpeculativeConfig(num_steps=4)
TREE = SpeculativeConfig(num_steps=4, topk=2)
PROMPTS = [prompt.prompt for prompt in held_out(12)]
# The second half changes and reports logits, each row in its own way.
OPTIONS: list[dict[str, Any]] = [
    {"frequency_penalty": 0.8, "logprobs": 3},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "prompt_logprobs": 2},
    {"logit_bias": {300: 4.0, 310: 3.5}, "logprobs": 0},
    {"min_tokens": 12},
    {"allowed_token_ids": tuple(range(300, 420)), "frequency_penalty": 0.4},
    {"prompt_logprobs": 0, "logprobs": 20},
]
PARAMS = [
    SamplingParams(
        temperature=n % 2,
        top_k=64,
        top_p=0.95,
        seed=n,
        max_tokens=20 + 5 * n,
        ignore_eos=True,
        **(OPTIONS[n - 6] if n >= 6 else {}),
    )
    for n in range(12)
]


def ids(config: SpeculativeConfig, schedule: Schedule = "sync", **options: Any) -> list[tuple[int, ...]]:
    llm = LLM(
        "frostline/tiny",
        speculative=config,
        device="cuda",
        dtype="float32",
        schedule=schedule,
        max_num_seqs=5,
        **options,
    )
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize("config", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
def test_recorded_and_overlapped_give_the_eager_tokens(config: SpeculativeConfig) -> None:
    eager = ids(config, capture_after=None)
    assert ids(config, capture_after=0) == eager
    assert ids(config, schedule="overlap", capture_after=0) == eager


@pytest.mark.parametrize("config", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
@pytest.mark.parametrize("capture_after", [None, 0])
def test_reported_35_launching_never_waits(
    config: SpeculativeConfig, capture_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises at every operation that would make the host wait, while a step is launched."""
    ids(config, capture_after=capture_after)  # Whatever sets itself up at a first call has done so.
    launch = DeviceExecutor.launch
    seen = set()

    def watched(self: DeviceExecutor, step: Step) -> Any:
        shape = len(step.rows), step.plan, step.kv_bound > 128
        # A capture may wait: it happens once per shape.
        torch.cuda.set_sync_debug_mode("error" if capture_after is None or shape in seen else "default")
        seen.add(shape)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return launch(self, step)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(DeviceExecutor, "launch", watched)
    ids(config, capture_after=capture_after)
    with pytest.raises(RuntimeError):
        torch.cuda.set_sync_debug_mode("error")
        torch.ones(1, device="cuda").item()
    torch.cuda.set_sync_debug_mode("default")
