"""The offline API: prompts in, finished requests out, with vLLM's names and conventions.

Knows prompts and options and what they mean to the engine; nothing of tensors: the device side is an Executor, loaded
here or handed in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from frostline.config import DraftPosition, EngineConfig, Schedule, SpeculativeConfig
from frostline.engine.engine import Engine
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.engine.stats import EngineStats
from frostline.engine.timeline import Timeline
from frostline.errors import RequestError
from frostline.model.resolve import resolve_model
from frostline.runner.spans import Watch, both, nvtx_ticks, unwatched
from frostline.speculative.step import Executor
from frostline.speculative.worker import WorkerExecutor
from frostline.text.generation import GenerationDefaults
from frostline.text.tokenizer import Message, Tokenizer
from frostline.types import RequestOutput, SamplingParams

Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded pair and the engine around it.

    model: a local folder, a bundled model ("frostline/tiny") or a hub id. draft: "auto" (`<model>-assistant`), "none",
    or as `model`. speculative: how far and wide to draft. tokenizer: another place to take it from; a model without one
    takes token ids only. dummy_weights: random weights in the shapes of the configs, made on the device. timeline:
    records every tick from now on. The other options are those of EngineConfig.

    Raises ModelError, PairError or ConfigError, each with the remedy, for whatever cannot be loaded.
    """

    def __init__(
        self,
        model: str,
        *,
        draft: str = "auto",
        speculative: SpeculativeConfig | None = None,
        schedule: Schedule = "sync",
        device: str = "cpu",
        dtype: str = "auto",
        tokenizer: str | None = None,
        dummy_weights: bool = False,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        max_prefill_tokens: int = 2048,
        page_size: int = 16,
        kv_pages: int | None = None,
        capture_after: int | Literal["auto"] | None = "auto",
        timeline: Timeline | None = None,
    ) -> None:
        config = EngineConfig(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_prefill_tokens=max_prefill_tokens,
            page_size=page_size,
            kv_pages=kv_pages,
            schedule=schedule,
            capture_after=capture_after,
        )
        speculative = speculative or SpeculativeConfig()
        if draft == "none":
            speculative = speculative.without_drafts()
        # Imported here, so that an LLM on another executor needs no torch.
        from frostline.speculative.executor import DeviceExecutor

        folder = resolve_model(model, weights=not dummy_weights)
        defaults = GenerationDefaults.load(folder)
        executor = DeviceExecutor.load(
            model,
            draft,
            speculative=speculative,
            engine=config,
            device=device,
            dtype=dtype,
            dummy_weights=dummy_weights,
        )
        device_side: Executor = executor
        watch = _watch(executor.pair.target.device.type, timeline)
        if schedule == "overlap" and executor.pair.target.device.type == "cpu":
            device_side = WorkerExecutor(executor, watch=watch)
        if executor.verify_width == 1:  # "auto" found no assistant
            speculative = speculative.without_drafts()
        spec = executor.spec
        self.default_sampling_params = defaults.sampling
        self.tokenizer: Tokenizer | None = None
        if tokenizer is not None or Tokenizer.is_in(folder):
            self.tokenizer = Tokenizer.load(tokenizer or folder, bos_token_id=spec.bos_token_id)
        self._engine = Engine(
            device_side,
            speculative=speculative,
            config=config,
            decoder=self.tokenizer,
            eos_token_ids=defaults.eos_token_ids or spec.eos_token_ids,
            vocab_size=spec.vocab_size,
            offset=DraftOffset(executor.draft_position),
            watch=watch,
        )

    @classmethod
    def from_executor(
        cls,
        executor: Executor,
        *,
        speculative: SpeculativeConfig,
        tokenizer: Tokenizer | None = None,
        engine: EngineConfig | None = None,
        defaults: GenerationDefaults | None = None,
        vocab_size: int | None = None,
        draft_position: DraftPosition = "P",
        timeline: Timeline | None = None,
    ) -> LLM:
        """An LLM on a device side that exists already.

        vocab_size: None leaves token ids unchecked. draft_position: what "auto" in `speculative` stands for.
        """
        defaults = defaults or GenerationDefaults()
        parts = Engine(
            executor,
            speculative=speculative,
            config=engine or EngineConfig(),
            decoder=tokenizer,
            eos_token_ids=defaults.eos_token_ids,
            vocab_size=vocab_size,
            offset=DraftOffset(draft_position),
            watch=_watch("cpu", timeline),
        )
        return cls._around(parts, tokenizer, defaults.sampling)

    @property
    def speculative(self) -> SpeculativeConfig:
        """What is drafted; `num_steps` is 0 when there is no assistant."""
        return self._engine.speculative

    def with_speculative(self, speculative: SpeculativeConfig) -> LLM:
        """The same loaded pair, drafting differently: weights, KV memory and tokenizer are shared.

        The two generate one at a time. Raises ConfigError for a config that is wider than the pair was loaded with.
        """
        return self._around(self._engine.with_speculative(speculative), self.tokenizer, self.default_sampling_params)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt: a text, a list of token ids, or a list of these. Outputs come in the prompts' order.

        sampling_params: one for all, one per prompt, or None for `default_sampling_params`. use_tqdm: vLLM's name for a
        progress bar; None shows it for several prompts on a terminal. A text gets the begin-of-text token unless it
        starts with it; token ids are taken as they are.

        Raises RequestError before anything runs when a prompt is empty, too long or can never fit. A request whose
        logits held NaN comes back with finish_reason "error" and the remedy in stop_reason.
        """
        several = _as_list(prompts)
        return self._run([(prompt, True) for prompt in several], sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the checkpoint's chat template.

        messages: dicts with role and content. chat_template_kwargs reach the template, as enable_thinking does.
        Raises as `generate` does, and RequestError when the template refuses the messages.
        """
        tokenizer = self._need_tokenizer("chat")
        conversations: Any = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        texts = [
            tokenizer.render_chat(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self._run([(text, False) for text in texts], sampling_params, use_tqdm)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out. Raises RequestError when the model has no tokenizer."""
        return self._need_tokenizer("decode").decode(token_ids)

    def stats(self) -> EngineStats:
        """Counters of everything generated so far; they add up with the tokens of the outputs."""
        return self._engine.stats()

    @classmethod
    def _around(cls, engine: Engine, tokenizer: Tokenizer | None, sampling: SamplingParams) -> LLM:
        llm = cls.__new__(cls)
        llm._engine = engine
        llm.tokenizer = tokenizer
        llm.default_sampling_params = sampling
        return llm

    def _run(self, prompts: list[tuple[Prompt, bool]], params: Params, use_tqdm: bool | None) -> list[RequestOutput]:
        if params is None:
            params = self.default_sampling_params
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(each)} sampling_params; give one for all or one each")
        requests: list[Request] = []
        for number, ((prompt, add_bos), own) in enumerate(zip(prompts, each, strict=True), start=1):
            try:
                requests.append(self._request(prompt, own, add_bos=add_bos))
            except RequestError as error:
                if len(prompts) == 1:
                    raise
                raise RequestError(f"prompt {number} of {len(prompts)}: {error}") from error
        shown = len(requests) > 1 and sys.stderr.isatty() if use_tqdm is None else use_tqdm
        with _progress(len(requests), shown=shown) as advance:
            self._engine.run(requests, on_finish=advance)
        return [request.output() for request in requests]

    def _request(self, prompt: Prompt, params: SamplingParams, *, add_bos: bool) -> Request:
        if not isinstance(prompt, str):
            return self._engine.request(prompt, params)
        if not prompt:
            raise RequestError("the prompt is empty; give at least one character")
        ids = self._need_tokenizer("a text prompt").encode(prompt, add_bos=add_bos)
        return self._engine.request(ids, params, prompt=prompt)

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{what} needs a tokenizer and this model has none; give token ids or LLM(tokenizer=...)"
            )
        return self.tokenizer


def _watch(device_type: str, timeline: Timeline | None) -> Watch:
    """Who is told of ticks: a profiler on a GPU, and the timeline where there is one."""
    own: Watch = nvtx_ticks if device_type == "cuda" else unwatched
    if timeline is None:
        return own
    return timeline.span if own is unwatched else both(own, timeline.span)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. Raises RequestError for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(_is_id(item) for item in items):
        return [items]
    for item in items:
        if not isinstance(item, str) and not (isinstance(item, Sequence) and all(_is_id(i) for i in item)):
            raise RequestError("prompts must be a text, a list of token ids, or a list of such prompts")
    return items


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[Request], None]]:
    """Gives a callback for each finished request; on a terminal it moves a bar with the tokens made so far."""
    if not shown:
        yield lambda request: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task, tokens = bar.add_task("", total=total), 0

        def advance(request: Request) -> None:
            nonlocal tokens
            tokens += len(request.output_ids)
            bar.update(task, advance=1, description=f"{tokens} tokens")

        yield advance
