"""An engine for tests of the command line: letters after the prompt, drafts accepted two deep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frostline.cli.loading import Prompt
from frostline.config import SpeculativeConfig
from frostline.errors import RequestError
from frostline.types import CompletionOutput, RequestOutput, SamplingParams, SpecStats


class Letters:
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


class FakeLLM:
    """Token i of a reply is chr(97 + i % 26). `broken` modes give another last token."""

    def __init__(self, config: SpeculativeConfig, broken: Sequence[int] = ()) -> None:
        self.speculative = self.config = config
        self.broken = tuple(broken)
        self.calls: list[list[Prompt]] = []
        self.conversations: list[list[Mapping[str, str]]] = []

    def generate(
        self, prompts: Sequence[Prompt], sampling_params: SamplingParams, *, use_tqdm: bool | None = None
    ) -> list[RequestOutput]:
        self.calls.append(list(prompts))
        return [self._reply(prompt, sampling_params) for prompt in prompts]

    def chat(self, messages: Sequence[Mapping[str, str]], sampling_params: SamplingParams) -> list[RequestOutput]:
        if not messages:
            raise RequestError("no messages; give one")
        self.conversations.append([dict(message) for message in messages])
        return [self._reply(str(messages[-1]["content"]), sampling_params)]

    def with_speculative(self, speculative: SpeculativeConfig) -> FakeLLM:
        assert speculative.verify_width <= self.speculative.verify_width
        return FakeLLM(speculative, self.broken)

    @property
    def tokenizer(self) -> Letters:
        return Letters()

    def _reply(self, prompt: Prompt, params: SamplingParams) -> RequestOutput:
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
            outputs=(CompletionOutput(text=self.tokenizer.decode(ids), token_ids=tuple(ids), finish_reason="length"),),
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
