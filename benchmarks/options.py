"""Milliseconds per iteration of the bundled pair with and without the options that change or report logits, on a CPU.

    python benchmarks/options.py [--batch 1,8,32] [--tokens 96] [--steps 4] [--temperature 0]

One JSON line per (options, batch): the median and the least processor time of the device side's steps in which the
whole batch iterates, all recorded beforehand and on one thread, and the accept length. The first line of a batch is
without options.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from statistics import median
from typing import Any

import torch

from frostline import LLM, SamplingParams, SpeculativeConfig
from frostline.bundled import bundled_path
from frostline.cli.heldout import held_out
from frostline.cli.output import environment
from frostline.config import EngineConfig
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.step import Step, StepResult
from frostline.text.tokenizer import Tokenizer

MODEL = "frostline/tiny"
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "penalties": {"frequency_penalty": 0.2, "repetition_penalty": 1.05},
    "bias": {"logit_bias": {1: -100.0, 300: 0.5}},
    "masks": {"min_tokens": 1_000},
    "logprobs=0": {"logprobs": 0},
    "logprobs=5": {"logprobs": 5},
    "all": {
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.05,
        "logit_bias": {300: 0.5},
        "min_tokens": 1_000,
        "logprobs": 5,
    },
}


class Timed:
    """A device side that keeps the time of every step in which `batch` rows iterate and nothing is prefilled."""

    def __init__(self, inner: DeviceExecutor, batch: int) -> None:
        self._inner, self._batch = inner, batch
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, step: Step) -> Any:
        started = time.thread_time()
        flight = self._inner.launch(step)
        if len(step.rows) == self._batch and not step.prefill:
            self.seconds.append(time.thread_time() - started)
        return flight

    def collect(self, flight: Any) -> StepResult:
        return self._inner.collect(flight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    speculative = SpeculativeConfig(num_steps=arguments.steps)
    tokenizer = Tokenizer.load(bundled_path(MODEL))
    sys.stdout.write(json.dumps({"environment": environment("cpu"), "arguments": vars(arguments)}) + "\n")
    for batch in map(int, arguments.batch.split(",")):
        config = EngineConfig(max_num_seqs=batch, max_model_len=512, schedule="sync", capture_after=0)
        device = DeviceExecutor.load(MODEL, "auto", speculative=speculative, engine=config, device="cpu")
        prompts = [tokenizer.encode(prompt.prompt, add_bos=False) for prompt in held_out(batch)]
        for label, options in OPTIONS.items():
            timed = Timed(device, batch)
            llm = LLM.from_executor(timed, speculative=speculative, engine=config, tokenizer=tokenizer, vocab_size=4096)
            longest = max(arguments.tokens, 1)
            options = options | ({"min_tokens": longest} if "min_tokens" in options else {})
            params = SamplingParams(
                temperature=arguments.temperature, seed=1, max_tokens=longest, ignore_eos=True, **options
            )
            llm.generate(prompts, params, use_tqdm=False)  # records
            timed.seconds.clear()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            runs = sum(output.stats.iterations for output in outputs)
            accepted = sum(sum(output.stats.run_lengths) for output in outputs) / runs
            times = {"median_ms": median(timed.seconds) * 1e3, "least_ms": min(timed.seconds) * 1e3}
            figures = {name: round(value, 2) for name, value in (times | {"accept_length": accepted}).items()}
            sys.stdout.write(json.dumps({"options": label, "batch": batch, **figures}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
