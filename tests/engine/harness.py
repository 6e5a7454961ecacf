"""An engine on the fake device side, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frostline.config import EngineConfig, SpeculativeConfig
from frostline.engine.engine import Engine
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.llm import LLM
from frostline.speculative.step import Executor
from frostline.text.generation import GenerationDefaults
from frostline.text.tokenizer import Tokenizer
from frostline.types import RequestOutput, SamplingParams
from tests.engine.fake_executor import FakeExecutor, scripted
from tests.text.byte_level import EOS, byte_level

PROMPT = (40, 41, 42)


def engine_on(executor: Executor, *, steps: int = 4, **options: Any) -> Engine:
    config = SpeculativeConfig(
        num_steps=steps, topk=options.pop("topk", 1), num_draft_tokens=options.pop("width", None)
    )
    return Engine(
        executor,
        speculative=config,
        config=EngineConfig(
            max_prefill_tokens=options.pop("budget", 2048),
            schedule=options.pop("schedule", "sync"),
            prefix_cache=options.pop("prefix_cache", True),
        ),
        decoder=byte_level(),
        eos_token_ids=options.pop("eos", (EOS,)),
        vocab_size=byte_level().vocab_size,
        offset=options.pop("offset", None) or DraftOffset("P"),
        **options,
    )


def llm_on(executor: FakeExecutor, *, tokenizer: Tokenizer | None = None, steps: int = 4) -> LLM:
    return LLM.from_executor(
        executor,
        tokenizer=tokenizer,
        speculative=SpeculativeConfig(num_steps=steps),
        defaults=GenerationDefaults(eos_token_ids=(EOS,)),
        vocab_size=byte_level().vocab_size,
    )


def run(engine: Engine, requests: Sequence[Request]) -> list[RequestOutput]:
    engine.run(requests, on_finish=lambda request: None)
    return [request.output() for request in requests]


def run_script(tokens: Sequence[int], runs: Sequence[int], params: SamplingParams, **options: Any) -> RequestOutput:
    """One request whose output would be `tokens`, in iterations of the given lengths after the first token."""
    lengths = iter(runs)
    executor = FakeExecutor(scripted(tokens, len(PROMPT)), accept=lambda most: min(next(lengths, 1) - 1, most))
    engine = engine_on(executor, **options)
    return run(engine, [engine.request(PROMPT, params)])[0]
