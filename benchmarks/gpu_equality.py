"""Tokens of the bundled pair on a GPU against the CPU's, plain, chain and tree, greedy and sampled.

    python benchmarks/gpu_equality.py [--prompts 50] [--max-tokens 128]

Prints, per device, dtype and mode, how many prompts differ from the same device's plain decoding and from the CPU's
float32 plain decoding. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import sys

from frostline import LLM, SamplingParams, SpeculativeConfig
from frostline.bundled import bundled_path

WIDE = SpeculativeConfig(num_steps=4, topk=2)
MODES = {"plain": SpeculativeConfig(num_steps=0), "chain": SpeculativeConfig(num_steps=4), "tree": WIDE}
RULES = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0, "top_k": 64, "top_p": 0.95}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    lines = (bundled_path("tiny") / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines[::7]][: options.prompts]
    expected: dict[str, list[tuple[int, ...]]] = {}
    for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16")):
        llm = LLM("frostline/tiny", speculative=WIDE, device=device, dtype=dtype)
        for rule, values in RULES.items():
            rows = [
                SamplingParams(seed=seed, max_tokens=options.max_tokens, ignore_eos=True, **values)
                for seed in range(len(prompts))
            ]
            plain: list[tuple[int, ...]] = []
            for mode, config in MODES.items():
                outputs = llm.with_speculative(config).generate(prompts, rows, use_tqdm=False)
                ids = [output.outputs[0].token_ids for output in outputs]
                plain = plain or ids
                expected.setdefault(rule, ids)
                own = sum(a != b for a, b in zip(ids, plain, strict=True))
                cpu = sum(a != b for a, b in zip(ids, expected[rule], strict=True))
                sys.stdout.write(f"{device} {dtype} {rule} {mode}: {own} differ from plain, {cpu} from the CPU\n")


if __name__ == "__main__":
    main()
