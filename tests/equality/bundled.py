"""The bundled pair in a given precision, its held-out prompts, and engines over one loaded copy of the weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from frostline import LLM, RequestOutput, SamplingParams, SpeculativeConfig
from frostline.bundled import bundled_path
from frostline.config import EngineConfig
from frostline.speculative.executor import DeviceExecutor
from frostline.speculative.pair import Pair, load_pair
from frostline.speculative.step import Executor
from frostline.text.generation import GenerationDefaults
from frostline.text.tokenizer import Tokenizer

TARGET, ASSISTANT = "frostline/tiny", "frostline/tiny-assistant"
PLAIN = SpeculativeConfig(num_steps=0)
GREEDY = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True)
# Where `make prove` leaves its figures, one JSON file per measurement; nowhere when it is not set.
FIGURES = "FROSTLINE_PROVE_FIGURES"


@dataclass(frozen=True)
class HeldOut:
    """One prompt of models/tiny/held_out.jsonl."""

    kind: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Bundle:
    """The loaded pair with what an LLM needs beside it."""

    pair: Pair
    tokenizer: Tokenizer
    defaults: GenerationDefaults

    def executor(
        self,
        speculative: SpeculativeConfig,
        *,
        batch: int = 32,
        context: int = 1024,
        page_size: int = 16,
        kv_pages: int | None = None,
        pair: Pair | None = None,
        **options: Any,
    ) -> tuple[DeviceExecutor, EngineConfig]:
        """A device side of its own over these weights (or those of `pair`); it records the drafted nodes.

        options: as EngineConfig has them, but that prefix_cache is off unless asked for: who follows the rows of a
        request wants to see each of them computed.
        """
        # The plain loop, where a test does not name one: every run that was launched counts, none comes late.
        options.setdefault("schedule", "sync")
        options.setdefault("prefix_cache", False)
        config = EngineConfig(
            max_num_seqs=batch, max_model_len=context, page_size=page_size, kv_pages=kv_pages, **options
        )
        device = DeviceExecutor(pair or self.pair, speculative=speculative, engine=config, record_nodes=True)
        return device, config

    def llm(
        self,
        speculative: SpeculativeConfig,
        *,
        wrap: Callable[[DeviceExecutor], Executor] | None = None,
        **sizes: Any,
    ) -> LLM:
        """An LLM on such a device side. wrap: something between it and the engine."""
        device, config = self.executor(speculative, **sizes)
        return LLM.from_executor(
            wrap(device) if wrap else device,
            speculative=speculative,
            tokenizer=self.tokenizer,
            engine=config,
            defaults=self.defaults,
            vocab_size=self.pair.target.spec.vocab_size,
            draft_position=device.draft_position,
        )

    def held_out(self) -> list[HeldOut]:
        """Every held-out prompt, the kinds taking turns, so that any first part of the list has all of them."""
        by_kind: dict[str, list[HeldOut]] = {}
        for line in (bundled_path(TARGET) / "held_out.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            ids = tuple(self.tokenizer.encode(row["prompt"], add_bos=False))
            by_kind.setdefault(row["kind"], []).append(HeldOut(kind=row["kind"], ids=ids))
        return [prompt for turn in zip(*by_kind.values(), strict=True) for prompt in turn]

    def long_prompts(self, lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """Prompts of given lengths, many windows long: held-out prompts one after another, as turns of one chat."""
        ids = [token for prompt in self.held_out()[::-1] for token in prompt.ids]
        return [tuple(ids[100 * number : 100 * number + length]) for number, length in enumerate(lengths)]


@cache
def bundle(dtype: str = "float64") -> Bundle:
    """Loaded once per process and precision."""
    pair = load_pair(TARGET, "auto", device="cpu", dtype=dtype)
    folder = bundled_path(TARGET)
    return Bundle(
        pair=pair,
        tokenizer=Tokenizer.load(folder, bos_token_id=pair.target.spec.bos_token_id),
        defaults=GenerationDefaults.load(folder),
    )


def sampled(seed: int, **changes: Any) -> SamplingParams:
    """Gemma's default sampling with a fixed seed."""
    values: dict[str, Any] = {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "max_tokens": 128, "ignore_eos": True}
    return SamplingParams(seed=seed, **(values | changes))


def accept_length(outputs: Sequence[RequestOutput]) -> float:
    """Tokens per iteration over all requests."""
    iterations = sum(output.stats.iterations for output in outputs)
    return sum(sum(output.stats.run_lengths) for output in outputs) / max(1, iterations)


def told(output: RequestOutput) -> tuple[tuple[int, ...], str, object, str]:
    """Everything about a request that speculation must not change."""
    one = output.outputs[0]
    return one.token_ids, one.finish_reason, one.stop_reason, one.text


def differing(found: Sequence[RequestOutput], expected: Sequence[RequestOutput]) -> list[int]:
    """Which requests differ in tokens, finish reason or text."""
    pairs = zip(found, expected, strict=True)
    return [number for number, (ours, theirs) in enumerate(pairs) if told(ours) != told(theirs)]


def report(name: str, figures: dict[str, Any]) -> None:
    """Print figures, and keep them where the environment asks for it."""
    print(json.dumps({name: figures}))
    if os.environ.get(FIGURES):
        folder = Path(os.environ[FIGURES])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
