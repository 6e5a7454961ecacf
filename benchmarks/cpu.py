"""Two choices of the CPU path, measured on the bundled target: how weights lie, and whose helper threads live.

    python benchmarks/cpu.py [--batch 8] [--rounds 5] [--tokens 128]

"products": milliseconds of one forward's matrix products alone, for 1 and for --batch rows on one thread and on all,
with weights as torch lays them out ("by output") and as Linear.prepare does ("by input"). "loops": tokens per second of
plain decoding, sync and overlap in turns, then overlap beside the helper threads that another thread left behind, which
are otherwise let go (runner.threads).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F

from frostline import LLM, SamplingParams, SpeculativeConfig
from frostline.bundled import bundled_path
from frostline.cli.heldout import held_out
from frostline.cli.output import environment
from frostline.config import EngineConfig, Schedule
from frostline.parallel.linear import Linear
from frostline.runner.threads import team_release
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import Executor
from frostline.speculative.worker import WorkerExecutor
from frostline.text.tokenizer import Tokenizer

MODEL = "frostline/tiny"
PLAIN = SpeculativeConfig(num_steps=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    config = EngineConfig(max_num_seqs=options.batch, max_model_len=512, prefix_cache=False)
    device = DeviceExecutor.load(MODEL, "none", speculative=PLAIN, engine=config, device="cpu")
    tell({"environment": environment("cpu"), "arguments": vars(options)})
    threads = torch.get_num_threads()
    for count in (1, threads):
        torch.set_num_threads(count)
        for rows in (1, options.batch):
            tell({"products": products(device, rows), "rows": rows, "threads": count})
    tell({"loops": loops(device, config, options.batch, options.rounds, options.tokens), "batch": options.batch})


def products(device: DeviceExecutor, rows: int) -> dict[str, float]:
    weights = [part.weight.detach() for part in device.pair.target.modules() if isinstance(part, Linear)]
    inputs = {width: torch.randn(rows, width) for width in {weight.shape[1] for weight in weights}}
    layouts = {"by output": [weight.contiguous() for weight in weights], "by input": weights}
    times: dict[str, list[float]] = {name: [] for name in layouts}
    with torch.inference_mode():
        for _ in range(300):
            for name, laid_out in layouts.items():
                times[name].append(timed(lambda w=laid_out: [F.linear(inputs[one.shape[1]], one) for one in w]))
    return {"count": len(weights)} | {f"{name}, ms": round(median(found) * 1e3, 3) for name, found in times.items()}


def loops(device: DeviceExecutor, config: EngineConfig, batch: int, rounds: int, tokens: int) -> dict[str, float]:
    tokenizer = Tokenizer.load(bundled_path(MODEL))
    prompts = [tokenizer.encode(prompt.prompt, add_bos=False) for prompt in held_out(batch)]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)

    def llm(executor: Executor, schedule: Schedule) -> LLM:
        engine = EngineConfig(max_num_seqs=batch, max_model_len=512, prefix_cache=False, schedule=schedule)
        return LLM.from_executor(executor, speculative=PLAIN, engine=engine, vocab_size=device.spec.vocab_size)

    def speed(one: LLM) -> float:
        return batch * tokens / timed(lambda: one.generate(prompts, params, use_tqdm=False))

    cases = {"sync": llm(device, "sync"), "overlap": llm(WorkerExecutor(device, release=team_release()), "overlap")}
    speeds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 3):
        for name, one in cases.items():
            value = speed(one)
            if number >= 3:  # shapes are recorded before
                speeds[name].append(value)
    # Last, since its own helper threads would stand in the others' way; the sync loop leaves this thread's.
    kept = llm(WorkerExecutor(device), "overlap")
    speed(cases["sync"])
    speeds["overlap, threads kept"] = [speed(kept) for _ in range(rounds)]
    return {name: round(median(values), 1) for name, values in speeds.items()}


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
