"""Tokens of the bundled pair under pressure against those with room: preemption, prefix sharing, samples, options.

    python benchmarks/pressure.py [--device cuda]

Float32. Prints, per case, what the engine had to do and how many prompts differ from the first case, which has room for
all; on a GPU also from the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from frostline import LLM, SamplingParams, SpeculativeConfig
from frostline.cli.heldout import held_out

COUNTERS = ("iterations", "preemptions", "cached_prompt_tokens", "late_runs")
# 45 pages hold one request of the context and little more.
TIGHT = {"kv_pages": 45}
CASES: tuple[dict[str, Any], ...] = (
    {"schedule": "sync"},
    {"schedule": "sync", **TIGHT},
    {"schedule": "overlap", **TIGHT},
    {"schedule": "overlap", "topk": 2, **TIGHT},
)
PROMPTS = [prompt.prompt for prompt in held_out(10)] * 2
PARAMS = [
    SamplingParams(
        temperature=number % 2,
        top_k=64,
        top_p=0.95,
        seed=number,
        max_tokens=100,
        ignore_eos=True,
        n=1 + (number % 3 == 0),
        frequency_penalty=0.3 * (number % 4 == 1),
        logprobs=2 if number % 5 == 0 else None,
    )
    for number in range(len(PROMPTS))
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    expected = run(device, CASES[0])
    for case in CASES[1:]:
        tell(device, case, differing(run(device, case), expected))
    if device != "cpu":
        tell("cpu", CASES[0], differing(run("cpu", CASES[0]), expected))


def run(device: str, case: dict[str, Any]) -> list[list[tuple[int, ...]]]:
    options = dict(case)
    config = SpeculativeConfig(num_steps=4, topk=options.pop("topk", 1))
    llm = LLM(
        "frostline/tiny",
        speculative=config,
        device=device,
        dtype="float32",
        max_num_seqs=8,
        max_model_len=512,
        **options,
    )
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    stats = llm.stats()
    sys.stdout.write(json.dumps({"device": device, **case, **{name: getattr(stats, name) for name in COUNTERS}}) + "\n")
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def differing(found: list[Any], expected: list[Any]) -> int:
    return sum(ours != theirs for ours, theirs in zip(found, expected, strict=True))


def tell(device: str, case: dict[str, Any], count: int) -> None:
    sys.stdout.write(f"{device} {case}: {count} of {len(PROMPTS)} prompts differ\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
