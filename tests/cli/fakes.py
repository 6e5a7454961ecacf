"""An engine for tests of the command line: letters after the prompt, drafts accepted two deep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frostline.cli.loading import Prompt
from frostline.config import Schedule, SpeculativeConfig
from frostline.engine.stats import EngineStats
from frostline.engine.timeline import Timeline
from frostline.errors import RequestError
from frostline.types import CompletionOutput, RequestOutput, SamplingParams, SpecStats, StreamOutput


class Letters:
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))

    def encode(self, text: str) -> Sequence[int]:
        return [ord(letter) for letter in text]


class FakeLive:
    """A run of every open request per step."""

    def __init__(self, llm: FakeLLM) -> None:
        self._llm = llm
        self._open: dict[int, tuple[RequestOutput, list[int]]] = {}
        self._added = 0
        self.most_open = 0

    @property
    def num_open(self) -> int:
        return len(self._open)

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        assert params is not None
        self._llm.added.append(prompt)
        output = self._llm.reply(prompt, params)
        self._open[self._added] = (output, [1, *output.stats.run_lengths])
        self._added += 1
        self.most_open = max(self.most_open, self.num_open)
        return self._added - 1

    def step(self) -> list[StreamOutput]:
        pieces = []
        for number, (output, lengths) in list(self._open.items()):
            ids = output.outputs[0].token_ids[-sum(lengths) :][: lengths.pop(0)]
            if not lengths:
                del self._open[number]
            pieces.append(
                StreamOutput(
                    request_id=str(number),
                    prompt_index=number,
                    index=0,
                    text="",
                    token_ids=ids,
                    finish_reason=None if lengths else "length",
                    output=None if lengths else output,
                )
            )
        return pieces

    def close(self) -> None:
        assert not self._open


class FakeLLM:
    """Token i of a reply is chr(97 + i % 26). `broken` modes give another last token."""

    def __init__(self, config: SpeculativeConfig, broken: Sequence[int] = (), schedule: Schedule = "sync") -> None:
        self.speculative = self.config = config
        self.broken = tuple(broken)
        self.schedule = schedule
        self.added: list[Prompt] = []
        self.lives: list[FakeLive] = []
        self.calls: list[list[Prompt]] = []
        self.conversations: list[list[Mapping[str, str]]] = []

    def generate(
        self, prompts: Sequence[Prompt], sampling_params: SamplingParams, *, use_tqdm: bool | None = None
    ) -> list[RequestOutput]:
        self.calls.append(list(prompts))
        return [self.reply(prompt, sampling_params) for prompt in prompts]

    def chat(self, messages: Sequence[Mapping[str, str]], sampling_params: SamplingParams) -> list[RequestOutput]:
        if not messages:
            raise RequestError("no messages; give one")
        self.conversations.append([dict(message) for message in messages])
        return [self.reply(str(messages[-1]["content"]), sampling_params)]

    def with_speculative(self, speculative: SpeculativeConfig) -> FakeLLM:
        assert speculative.verify_width <= self.speculative.verify_width
        return self._like(FakeLLM(speculative, self.broken, self.schedule))

    def with_schedule(self, schedule: Schedule, *, timeline: Timeline | None = None) -> FakeLLM:
        if timeline is not None:
            with timeline.span("tick", step=0):
                pass
        return self._like(FakeLLM(self.speculative, self.broken, schedule))

    def live(self, *, text: bool = True) -> FakeLive:
        self.lives.append(FakeLive(self))
        return self.lives[-1]

    def stats(self) -> EngineStats:
        return EngineStats()

    def _like(self, other: FakeLLM) -> FakeLLM:
        other.added, other.lives = self.added, self.lives
        return other

    @property
    def tokenizer(self) -> Letters:
        return Letters()

    def reply(self, prompt: Prompt, params: SamplingParams) -> RequestOutput:
        count = params.max_tokens or 16
        ids = [97 + i % 26 for i in range(count)]
        if self.config.topk in self.broken and self.config.num_steps:
            ids[-1] = 33
        accepted = min(2, self.config.num_steps)
        lengths = [accepted + 1] * ((count - 1) // (accepted + 1))
        rest = (count - 1) % (accepted + 1)
        lengths += [rest] if rest else []
        return RequestOutput(
            request_id="0",
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=tuple(map(ord, prompt)) if isinstance(prompt, str) else tuple(prompt),
            outputs=tuple(
                CompletionOutput(
                    text=self.tokenizer.decode(ids), token_ids=tuple(ids), finish_reason="length", index=index
                )
                for index in range(params.n)
            ),
            seed=params.seed or 0,
            stats=SpecStats(
                iterations=len(lengths),
                drafted=self.config.num_steps * len(lengths),
                drafted_per_depth=(len(lengths),) * self.config.num_steps,
                accepted_per_depth=tuple(sum(length > depth for length in lengths) for depth in range(accepted))
                + (0,) * (self.config.num_steps - accepted),
                run_lengths=tuple(lengths),
            ),
        )
