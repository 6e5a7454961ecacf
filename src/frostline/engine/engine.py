"""One loaded device side with everything around it: turns prompts' ids into requests and drives the loop to their end.

Knows the parts and how they fit; nothing of files, tensors or how prompts were written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count

from frostline.cache.prefix import PrefixChain
from frostline.config import EngineConfig, Schedule, SpeculativeConfig
from frostline.engine.admission import Admission, Limits
from frostline.engine.calls import SAMPLE_MARK, Calls, OneAtATime
from frostline.engine.finish import FinishRules
from frostline.engine.loop import Loop, OverlapLoop, SyncLoop
from frostline.engine.planner import Planner
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.engine.rules import logit_rules
from frostline.engine.scheduler import Scheduler
from frostline.engine.stats import EngineStats
from frostline.errors import ConfigError, RequestError
from frostline.runner.spans import Watch, unwatched
from frostline.speculative.step import Executor
from frostline.text.detokenizer import TokenDecoder
from frostline.types import SamplingParams


class Engine:
    """speculative: at most as wide as the executor's verify_width. offset: the pair's own, for draft_position "auto".

    suppress_token_ids: never emitted, whoever asks. admission, turn: shared by engines on one device side: they cannot
    give out one page twice, and work one at a time. watch: is told of every tick and its parts.
    Raises ConfigError when `speculative` is wider than the executor.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        speculative: SpeculativeConfig,
        config: EngineConfig,
        decoder: TokenDecoder | None,
        eos_token_ids: Collection[int],
        vocab_size: int | None,
        offset: DraftOffset,
        suppress_token_ids: Collection[int] = (),
        admission: Admission | None = None,
        watch: Watch = unwatched,
        turn: OneAtATime | None = None,
    ) -> None:
        if speculative.verify_width > executor.verify_width:
            raise ConfigError(
                f"{speculative.verify_width} draft tokens per iteration are over the {executor.verify_width} that the "
                f"model was loaded with; load it with the widest SpeculativeConfig you need"
            )
        self.speculative = speculative
        self._executor = executor
        self.config = config
        self._decoder = decoder
        self._eos_token_ids = frozenset(eos_token_ids)
        self._suppress_token_ids = frozenset(suppress_token_ids)
        self._offset = offset
        self._watch = watch
        self._limits = Limits.of(executor, max_steps=speculative.num_steps, vocab_size=vocab_size)
        self._admission = admission or Admission(self._limits, num_rows=executor.num_rows, num_pages=executor.num_pages)
        own = offset if speculative.draft_position == "auto" else DraftOffset(speculative.draft_position)
        planner = Planner(speculative=speculative, offset=own)
        scheduler = Scheduler(self._admission, planner, max_prefill_tokens=config.max_prefill_tokens)
        loop = OverlapLoop if config.schedule == "overlap" else SyncLoop
        self.loop: Loop = loop(executor, scheduler, watch=watch)
        self._turn = turn or OneAtATime()
        self.calls = Calls(self.loop, self._turn)
        self._numbers = count()

    def variant(
        self,
        *,
        speculative: SpeculativeConfig | None = None,
        schedule: Schedule | None = None,
        executor: Executor | None = None,
        watch: Watch | None = None,
    ) -> Engine:
        """Another engine on the same rows and pages; what is None stays as it is here. The two work one at a time.

        executor: another way to the same device.
        """
        return Engine(
            executor or self._executor,
            speculative=speculative or self.speculative,
            config=self.config if schedule is None else replace(self.config, schedule=schedule),
            decoder=self._decoder,
            eos_token_ids=self._eos_token_ids,
            vocab_size=self._limits.vocab_size,
            offset=self._offset,
            suppress_token_ids=self._suppress_token_ids,
            admission=self._admission,
            watch=watch or self._watch,
            turn=self._turn,
        )

    def stats(self) -> EngineStats:
        """Counters of all requests so far."""
        return self.loop.stats()

    def request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
    ) -> Request:
        """A request that fits, not yet queued: sample 0 of its prompt. Raises RequestError for one that never can."""
        max_new_tokens, depth = self._limits.check(prompt_ids, params)
        return Request(
            request_id=str(next(self._numbers)) if request_id is None else request_id,
            prompt_ids=tuple(prompt_ids),
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            max_new_tokens=max_new_tokens,
            depth=depth,
            rules=self._finish_rules(params, max_new_tokens),
            logit_rules=logit_rules(
                params,
                prompt_ids,
                eos_token_ids=self._eos_token_ids,
                suppress_token_ids=self._suppress_token_ids,
                vocab_size=self._limits.vocab_size,
            ),
            prompt=prompt,
            chain=self._chain(params),
        )

    def samples(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
    ) -> list[Request]:
        """The n requests of one prompt, not yet queued: sample 0, and those that have it as their parent.

        Raises RequestError for a prompt that never fits, and for a request id with a "#", which tells samples apart.
        """
        if request_id is not None and (not request_id or SAMPLE_MARK in request_id):
            raise RequestError(f"request id {request_id!r} must not be empty nor hold a {SAMPLE_MARK!r}")
        first = self.request(prompt_ids, params, prompt=prompt, request_id=request_id)
        return [first, *(self._sibling(first, index) for index in range(1, params.n))]

    def run(self, requests: Sequence[Request], *, on_finish: Callable[[Request], None]) -> None:
        """Queue the requests and tick until all are over; on_finish is told of each.

        Others may have calls open at once, also in other threads: each one's ticks move all requests. However this one
        ends, none of its requests stays behind in the engine.
        """
        call = self.calls.open()
        try:
            self.calls.add(call, requests)
            while call.open:
                for request in self.calls.advance(call):
                    on_finish(request)
            # What ended in between, by an abort or in another's tick.
            for request in call.take_ended():
                on_finish(request)
        finally:
            self.calls.finish(call)

    def abort(self, request_id: str) -> bool:
        """End a request wherever it is, from any thread; its row and pages are free within one tick.

        False if no such request is open (any more).
        """
        return self.calls.abort(request_id)

    def _sibling(self, first: Request, index: int) -> Request:
        """Sample `index`; the prompt's log-probabilities are sample 0's."""
        return Request(
            request_id=f"{first.request_id}{SAMPLE_MARK}{index}",
            prompt_ids=first.prompt_ids,
            params=replace(first.params, prompt_logprobs=None),
            seed=sample_seed(first.seed, index),
            max_new_tokens=first.max_new_tokens,
            depth=first.depth,
            rules=self._finish_rules(first.params, first.max_new_tokens),
            logit_rules=first.logit_rules,
            prompt=first.prompt,
            parent=first,
            chain=self._chain(first.params),
        )

    def _chain(self, params: SamplingParams) -> PrefixChain | None:
        if not self.config.prefix_cache:
            return None
        return PrefixChain(self._limits.page_size, salt=params.cache_salt)

    def _finish_rules(self, params: SamplingParams, max_new_tokens: int) -> FinishRules:
        return FinishRules(
            params, max_new_tokens=max_new_tokens, eos_token_ids=self._eos_token_ids, decoder=self._decoder
        )


def sample_seed(seed: int, index: int) -> int:
    """Seed of sample `index` of a request, 63 bits; sample 0 has the request's own. The mixing is SplitMix64's."""
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return (mixed ^ (mixed >> 31)) >> 1
