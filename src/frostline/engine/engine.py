"""One loaded device side with everything around it: turns prompts' ids into requests and drives the loop to their end.

Knows the parts and how they fit; nothing of files, tensors or how prompts were written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from itertools import count

from frostline.config import EngineConfig, SpeculativeConfig
from frostline.engine.admission import Admission, Limits
from frostline.engine.finish import FinishRules
from frostline.engine.loop import Loop, OverlapLoop, SyncLoop
from frostline.engine.planner import Planner
from frostline.engine.position import DraftOffset
from frostline.engine.request import Request
from frostline.engine.scheduler import Scheduler
from frostline.engine.stats import EngineStats
from frostline.errors import ConfigError
from frostline.runner.spans import Watch, unwatched
from frostline.speculative.step import Executor
from frostline.text.detokenizer import TokenDecoder
from frostline.types import SamplingParams


class Engine:
    """speculative: at most as wide as the executor's verify_width. offset: the pair's own, for draft_position "auto".

    admission: shared by engines on one executor, so that they cannot give out one page twice; they run one at a time.
    watch: is told of every tick and its parts.
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
        admission: Admission | None = None,
        watch: Watch = unwatched,
    ) -> None:
        if speculative.verify_width > executor.verify_width:
            raise ConfigError(
                f"{speculative.verify_width} draft tokens per iteration are over the {executor.verify_width} that the "
                f"model was loaded with; load it with the widest SpeculativeConfig you need"
            )
        self.speculative = speculative
        self._executor = executor
        self._config = config
        self._decoder = decoder
        self._eos_token_ids = frozenset(eos_token_ids)
        self._offset = offset
        self._watch = watch
        self._limits = Limits.of(executor, max_steps=speculative.num_steps, vocab_size=vocab_size)
        self._admission = admission or Admission(self._limits, num_rows=executor.num_rows, num_pages=executor.num_pages)
        own = offset if speculative.draft_position == "auto" else DraftOffset(speculative.draft_position)
        planner = Planner(speculative=speculative, offset=own)
        scheduler = Scheduler(self._admission, planner, max_prefill_tokens=config.max_prefill_tokens)
        loop = OverlapLoop if config.schedule == "overlap" else SyncLoop
        self.loop: Loop = loop(executor, scheduler, watch=watch)
        self._numbers = count()

    def with_speculative(self, speculative: SpeculativeConfig) -> Engine:
        """Another engine on the same device side, rows and pages, drafting differently."""
        return Engine(
            self._executor,
            speculative=speculative,
            config=self._config,
            decoder=self._decoder,
            eos_token_ids=self._eos_token_ids,
            vocab_size=self._limits.vocab_size,
            offset=self._offset,
            admission=self._admission,
            watch=self._watch,
        )

    def stats(self) -> EngineStats:
        """Counters of all requests so far."""
        return self.loop.stats()

    def request(self, prompt_ids: Sequence[int], params: SamplingParams, *, prompt: str | None = None) -> Request:
        """A request that fits, not yet queued. Raises RequestError for one that never can."""
        max_new_tokens, depth = self._limits.check(prompt_ids, params)
        return Request(
            request_id=str(next(self._numbers)),
            prompt_ids=tuple(prompt_ids),
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            max_new_tokens=max_new_tokens,
            depth=depth,
            rules=FinishRules(
                params, max_new_tokens=max_new_tokens, eos_token_ids=self._eos_token_ids, decoder=self._decoder
            ),
            prompt=prompt,
        )

    def run(self, requests: Sequence[Request], *, on_finish: Callable[[Request], None]) -> None:
        """Queue the requests and tick until all are over. If anything stops that, none is left behind in the engine."""
        try:
            for request in requests:
                self.loop.add(request)
            while not self.loop.is_idle:
                for request in self.loop.tick():
                    on_finish(request)
        finally:
            self.loop.abort_all()
