"""Milliseconds per iteration of the released shapes on a GPU, with dummy weights.

    python benchmarks/gpu_iteration.py --models E4B,31B --batch 1,8,32 --steps 0,5 [--context 128] [--no-graphs]
        [--options none,penalties,bias,masks,logprobs]

One JSON line per (model, depth, batch, request option). "device" is what the GPU needs when steps are launched ahead of
their results, "tick" what a step takes when each result is read before the next launch. Accepted drafts are few with
random weights, so divide by an accept length of your own. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from frostline.config import EngineConfig, SpeculativeConfig
from frostline.runner.rules import NEVER, LogitRules, RuleFeatures
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.plan import Plan
from frostline.speculative.step import PrefillChunk, RowInit, Step, TableWrite
from frostline.types import GROUPS

SHAPES = Path(__file__).parent / "shapes"
PAGE = 16
RULES = {
    "penalties": LogitRules(frequency=0.5, presence=0.5, repetition=1.1, prompt_ids=tuple(range(10, 210))),
    "bias": LogitRules(bias=((5, 1.0), (6, -1.0))),
    "masks": LogitRules(earliest=((258882, NEVER), (258883, NEVER))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="E4B")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--steps", default="0,5")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--options", default="none")
    parser.add_argument("--no-graphs", action="store_true")
    options = parser.parse_args()
    batches, depths = ([int(v) for v in text.split(",")] for text in (options.batch, options.steps))
    for name in options.models.split(","):
        folder = SHAPES / f"gemma-4-{name}-it"
        executor = DeviceExecutor.load(
            str(folder),
            f"{folder}-assistant",
            speculative=SpeculativeConfig(num_steps=max(depths)),
            engine=EngineConfig(
                max_num_seqs=max(batches),
                max_model_len=options.context + 512,
                page_size=PAGE,
                capture_after=None if options.no_graphs else 0,
            ),
            device="cuda",
            dtype="bfloat16",
            dummy_weights=True,
        )
        for batch in batches:
            for depth in depths:
                for option in options.options.split(","):
                    figures = measure(executor, batch, depth, options.context, options.iterations, option)
                    line = {"model": name, "steps": depth, "batch": batch, "options": option, **figures}
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()
        del executor
        torch.cuda.empty_cache()


def measure(
    executor: DeviceExecutor, batch: int, depth: int, context: int, iterations: int, option: str
) -> dict[str, float]:
    rules = RULES.get(option)
    plan = Plan(
        num_steps=depth,
        verify_width=depth + 1,
        draft_offset=0,
        rules=RuleFeatures() if rules is None else rules.features,
        logprobs=5 if option == "logprobs" else -1,
    )
    rows = tuple(range(1, batch + 1))
    executor.collect(executor.launch(_admission(rows, plan, depth, context, rules)))
    # Every iteration may commit depth + 1 rows; the bound covers them all, so that one recording serves.
    step = Step(rows=rows, plan=plan, kv_bound=context + 64)
    for _ in range(3):
        executor.collect(executor.launch(step))
    torch.cuda.synchronize()
    started = time.perf_counter()
    flights = [executor.launch(step) for _ in range(iterations)]
    launched = time.perf_counter()
    executor.collect(flights[-1])
    ahead = time.perf_counter()
    for _ in range(iterations):
        executor.collect(executor.launch(step))
    one_by_one = time.perf_counter() - ahead
    return {
        "device_ms": round((ahead - started) / iterations * 1e3, 3),
        "launch_ms": round((launched - started) / iterations * 1e3, 3),
        "tick_ms": round(one_by_one / iterations * 1e3, 3),
    }


def _admission(rows: tuple[int, ...], plan: Plan, depth: int, context: int, rules: LogitRules | None) -> Step:
    pages = -(-(context + 512) // PAGE)
    tables = [
        TableWrite(row=row, group=group, start=0, pages=tuple(range(1 + (row - 1) * pages, 1 + row * pages)))
        for row in rows
        for group in GROUPS
    ]
    tokens = tuple(10 + n % 200 for n in range(context))
    return Step(
        inits=tuple(
            RowInit(
                row=row,
                prompt_len=context,
                seed=1,
                temperature=0.0,
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                depth=depth,
                rules=rules,
            )
            for row in rows
        ),
        tables=tuple(tables),
        prefill=tuple(PrefillChunk(row=row, start=0, tokens=tokens, last=True) for row in rows),
        rows=(),
        plan=plan,
    )


if __name__ == "__main__":
    main()
