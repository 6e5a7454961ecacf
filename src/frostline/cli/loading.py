"""Opens an engine for a command, and gathers the prompts that the user gave.

The engine is imported here and nowhere else in this package, when a command runs and not before: `--help` needs no
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from frostline.cli.dialects import Speculation
from frostline.cli.options import EngineOptions, ModelOptions
from frostline.config import Schedule, SpeculativeConfig
from frostline.engine.stats import EngineStats
from frostline.engine.timeline import Timeline
from frostline.errors import ConfigError
from frostline.requirements import check_requirements
from frostline.text.detokenizer import TokenDecoder
from frostline.types import RequestOutput, SamplingParams, StreamOutput

Prompt = str | Sequence[int]
STDIN = "-"


class TextCodec(TokenDecoder, Protocol):
    """The part of a tokenizer that commands use."""

    def encode(self, text: str) -> Sequence[int]: ...


class Stream(Protocol):
    """The part of `frostline.engine.live.Live` that commands use."""

    @property
    def num_open(self) -> int: ...

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int: ...

    def step(self) -> list[StreamOutput]: ...

    def close(self) -> None: ...


class Generator(Protocol):
    """The part of `frostline.llm.LLM` that commands use, so that tests can stand in for it."""

    @property
    def speculative(self) -> SpeculativeConfig: ...

    def generate(
        self, prompts: Sequence[Prompt], sampling_params: SamplingParams, *, use_tqdm: bool | None = None
    ) -> list[RequestOutput]: ...

    def chat(self, messages: Sequence[Mapping[str, str]], sampling_params: SamplingParams) -> list[RequestOutput]: ...

    def stats(self) -> EngineStats: ...

    def live(self, *, text: bool = True) -> Stream: ...

    def with_speculative(self, speculative: SpeculativeConfig) -> Generator: ...

    def with_schedule(self, schedule: Schedule, *, timeline: Timeline | None = None) -> Generator: ...

    @property
    def tokenizer(self) -> TextCodec | None: ...


def open_llm(
    model: ModelOptions,
    speculation: Speculation,
    engine: EngineOptions,
    *,
    must_draft: bool = False,
    prefix_cache: bool = True,
) -> Generator:
    """Loads the pair. must_draft: an error instead of plain decoding where "auto" finds no assistant.

    prefix_cache: off for whoever times the same prompts again and again.

    Raises FrostlineError for whatever does not fit, before or while loading.
    """
    check_requirements()
    from frostline.llm import LLM

    llm = LLM(
        model=model.model,
        draft=speculation.draft,
        speculative=speculation.config,
        schedule=engine.schedule,
        device=model.device,
        dtype=model.dtype,
        dummy_weights=model.dummy_weights,
        max_model_len=model.max_model_len,
        max_num_seqs=model.max_num_seqs,
        prefix_cache=prefix_cache,
    )
    require_drafts(llm, model, wanted=must_draft or speculation.explicit)
    return llm


def require_drafts(llm: Generator, model: ModelOptions, *, wanted: bool) -> None:
    """Raises ConfigError where drafts are wanted and the engine has no assistant to make them."""
    if wanted and llm.speculative.num_steps == 0:
        raise ConfigError(
            f"drafts were asked for and no assistant was found beside {model.model}; name one with --draft PATH, or "
            "decode plainly with --draft none"
        )


def gather_prompts(prompts: Sequence[str] | None, prompt_file: Path | None) -> list[str]:
    """Prompts in the order given, "-" read from standard input, then one per line of the file, blank lines skipped.

    Raises ConfigError for an empty prompt or a file that cannot be read as UTF-8.
    """
    gathered = [sys.stdin.read() if prompt == STDIN else prompt for prompt in prompts or ()]
    if prompt_file is not None:
        try:
            lines = prompt_file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"--prompt-file {prompt_file}: {error.strerror}; check the path") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"--prompt-file {prompt_file} is not UTF-8 (byte {error.start}); convert it") from None
        gathered += [line for line in lines if line.strip()]
        if not gathered:
            raise ConfigError(f"--prompt-file {prompt_file} holds no prompt; write one per line")
    for number, prompt in enumerate(gathered, start=1):
        if not prompt:
            raise ConfigError(f"prompt {number} is empty; give it at least one character")
    return gathered
