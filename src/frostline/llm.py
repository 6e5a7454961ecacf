"""The offline API: prompts in, finished requests out, with vLLM's names and conventions.

Knows prompts and options and what they mean to the engine; nothing of tensors: the device side is an Executor, loaded
here or handed in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from frostline.config import DraftPosition, EngineConfig, Schedule, SpeculativeConfig
from frostline.engine.engine import Engine
from frostline.engine.live import Live
from frostline.engine.outputs import assemble
from frostline.engine.position import DraftOffset
from frostline.engine.progress import progress
from frostline.engine.request import Request
from frostline.engine.stats import EngineStats
from frostline.engine.timeline import Timeline
from frostline.errors import RequestError
from frostline.model.resolve import resolve_model
from frostline.runner.spans import Watch, both, nvtx_ticks, unwatched
from frostline.speculative.step import Executor
from frostline.speculative.worker import WorkerExecutor
from frostline.text.generation import GenerationDefaults
from frostline.text.prompts import Prompt, as_list
from frostline.text.tokenizer import Message, Tokenizer
from frostline.types import RequestOutput, SamplingParams, StreamOutput

DeviceSide = Callable[[Schedule, Watch], Executor]
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
        schedule: Schedule = "overlap",
        device: str = "cpu",
        dtype: str = "auto",
        tokenizer: str | None = None,
        dummy_weights: bool = False,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        max_prefill_tokens: int = 2048,
        page_size: int = 16,
        kv_pages: int | None = None,
        sliding_kv_pages: int | None = None,
        prefix_cache: bool = True,
        capture_after: int | Literal["auto"] | None = "auto",
        timeline: Timeline | None = None,
    ) -> None:
        config = EngineConfig(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_prefill_tokens=max_prefill_tokens,
            page_size=page_size,
            kv_pages=kv_pages,
            sliding_kv_pages=sliding_kv_pages,
            prefix_cache=prefix_cache,
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
        if executor.verify_width == 1:  # "auto" found no assistant
            speculative = speculative.without_drafts()
        spec = executor.spec
        found = tokenizer or (folder if Tokenizer.is_in(folder) else None)
        device_type = executor.pair.target.device.type
        self._set_up(
            _device_side(executor, device_type),
            device_type,
            speculative=speculative,
            config=config,
            tokenizer=None if found is None else Tokenizer.load(found, bos_token_id=spec.bos_token_id),
            defaults=replace(defaults, eos_token_ids=defaults.eos_token_ids or spec.eos_token_ids),
            vocab_size=spec.vocab_size,
            draft_position=executor.draft_position,
            timeline=timeline,
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
        llm = cls.__new__(cls)
        llm._set_up(
            lambda schedule, watch: executor,
            "cpu",
            speculative=speculative,
            config=engine or EngineConfig(),
            tokenizer=tokenizer,
            defaults=defaults or GenerationDefaults(),
            vocab_size=vocab_size,
            draft_position=draft_position,
            timeline=timeline,
        )
        return llm

    def _set_up(
        self,
        device_side: DeviceSide,
        device_type: str,
        *,
        speculative: SpeculativeConfig,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        defaults: GenerationDefaults,
        vocab_size: int | None,
        draft_position: DraftPosition,
        timeline: Timeline | None,
    ) -> None:
        """Everything around a device side."""
        self._device_side, self._device_type = device_side, device_type
        self.tokenizer, self.default_sampling_params = tokenizer, defaults.sampling
        watch = _watch(device_type, timeline)
        self._engine = Engine(
            device_side(config.schedule, watch),
            speculative=speculative,
            config=config,
            decoder=tokenizer,
            eos_token_ids=defaults.eos_token_ids,
            suppress_token_ids=defaults.suppress_token_ids,
            vocab_size=vocab_size,
            offset=DraftOffset(draft_position),
            watch=watch,
        )

    @property
    def speculative(self) -> SpeculativeConfig:
        """What is drafted; `num_steps` is 0 when there is no assistant."""
        return self._engine.speculative

    def with_speculative(self, speculative: SpeculativeConfig) -> LLM:
        """The same loaded pair, drafting differently: weights, KV memory and tokenizer are shared.

        The two generate one at a time. Raises ConfigError for a config that is wider than the pair was loaded with.
        """
        return self._with(self._engine.variant(speculative=speculative))

    def with_schedule(self, schedule: Schedule, *, timeline: Timeline | None = None) -> LLM:
        """The same loaded pair under this schedule, as with_speculative. timeline: records its ticks, and only its."""
        watch = _watch(self._device_type, timeline)
        executor = self._device_side(schedule, watch)
        return self._with(self._engine.variant(schedule=schedule, executor=executor, watch=watch))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool | None = None,
        request_ids: Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt: a text, a list of token ids, or a list of these. Outputs come in the prompts' order.

        sampling_params: one for all, one per prompt, or None for `default_sampling_params`. use_tqdm: vLLM's name for a
        progress bar; None shows it for several prompts on a terminal. request_ids: one per prompt, to `abort` by; None
        numbers them. A text gets the begin-of-text token unless it starts with it; token ids are taken as they are.

        Raises RequestError before anything runs when a prompt is empty, too long or can never fit. A request whose
        logits held NaN comes back with finish_reason "error" and the remedy in stop_reason.
        """
        return self._run(self._requests(as_list(prompts), sampling_params, request_ids), use_tqdm)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        request_ids: Sequence[str] | None = None,
    ) -> Generator[StreamOutput]:
        """As `generate`, giving out what each tick adds. The pieces of a sample add up to what `generate` returns.

        Nothing runs before the first item is asked for, and between items nothing goes on. Closing the iterator aborts
        what is left. Raises as `generate` does, before the first item.
        """
        return self._stream(self._requests(as_list(prompts), sampling_params, request_ids))

    def live(self, *, text: bool = True) -> Live:
        """A stream to which prompts are added while others run. Each `step` is one tick; close it in the end.

        text: False gives a request's text in its last piece, all at once. Prompts are taken as `generate` takes them.
        """
        return Live(self._engine.calls, self._live_samples, self.tokenizer if text else None)

    def abort(self, request_id: str) -> bool:
        """End a request of `generate` or `stream`, all its samples; from another thread, or between two items.

        It comes back with the tokens that it has and finish_reason "abort"; its row and pages are free within one tick.
        False when no such request is open (any more).
        """
        return self._engine.abort(request_id)

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
        return self._run(self._requests(texts, sampling_params, None, add_bos=False), use_tqdm)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out. Raises RequestError when the model has no tokenizer."""
        return self._need_tokenizer("decode").decode(token_ids)

    def stats(self) -> EngineStats:
        """Counters of everything generated so far; they add up with the tokens of the outputs."""
        return self._engine.stats()

    def _with(self, engine: Engine) -> LLM:
        llm = self.__class__.__new__(self.__class__)
        llm.__dict__.update(self.__dict__, _engine=engine)
        return llm

    def _run(self, requests: list[list[Request]], use_tqdm: bool | None) -> list[RequestOutput]:
        shown = len(requests) > 1 and sys.stderr.isatty() if use_tqdm is None else use_tqdm
        everyone = list(chain.from_iterable(requests))
        with progress(len(everyone), shown=shown) as advance:
            self._engine.run(everyone, on_finish=advance)
        return [assemble(samples) for samples in requests]

    def _stream(self, requests: list[list[Request]]) -> Generator[StreamOutput]:
        with closing(self.live()) as live:
            live.add_samples(*requests)
            while live.num_open:
                yield from live.step()

    def _requests(
        self, prompts: Sequence[Prompt], params: Params, request_ids: Sequence[str] | None, *, add_bos: bool = True
    ) -> list[list[Request]]:
        """For each prompt its samples, none of them queued yet."""
        params = self.default_sampling_params if params is None else params
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        names: list[str | None] = [None] * len(prompts) if request_ids is None else list(request_ids)
        for what, given in (("sampling_params", len(each)), ("request_ids", len(names))):
            if given != len(prompts):
                raise RequestError(f"{len(prompts)} prompts but {given} {what}; give one for all or one each")
        requests: list[list[Request]] = []
        for prompt, own, name in zip(prompts, each, names, strict=True):
            try:
                requests.append(self._samples(prompt, own, name, add_bos=add_bos))
            except RequestError as error:
                if len(prompts) == 1:
                    raise
                raise RequestError(f"prompt {len(requests) + 1} of {len(prompts)}: {error}") from error
        return requests

    def _live_samples(self, prompt: Prompt, params: SamplingParams | None, name: str | None) -> list[Request]:
        return self._samples(prompt, params or self.default_sampling_params, name, add_bos=True)

    def _samples(self, prompt: Prompt, params: SamplingParams, name: str | None, *, add_bos: bool) -> list[Request]:
        if not isinstance(prompt, str):
            return self._engine.samples(prompt, params, request_id=name)
        if not prompt:
            raise RequestError("the prompt is empty; give at least one character")
        ids = self._need_tokenizer("a text prompt").encode(prompt, add_bos=add_bos)
        return self._engine.samples(ids, params, prompt=prompt, request_id=name)

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{what} needs a tokenizer and this model has none; give token ids or LLM(tokenizer=...)"
            )
        return self.tokenizer


def _device_side(executor: Executor, device_type: str) -> DeviceSide:
    """How the schedules reach the device: on a CPU, only another thread computes while the host goes on."""

    def reach(schedule: Schedule, watch: Watch) -> Executor:
        if schedule != "overlap" or device_type != "cpu":
            return executor
        # Imported here, so that an LLM on another executor needs no torch.
        from frostline.runner.threads import team_release

        return WorkerExecutor(executor, watch=watch, release=team_release())

    return reach


def _watch(device_type: str, timeline: Timeline | None) -> Watch:
    """Who is told of ticks: a profiler on a GPU, and the timeline where there is one."""
    own: Watch = nvtx_ticks if device_type == "cuda" else unwatched
    if timeline is None:
        return own
    return timeline.span if own is unwatched else both(own, timeline.span)
