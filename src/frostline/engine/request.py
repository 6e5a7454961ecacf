"""One request's state: few lengths are stored, the rest is derived.

Knows its own tokens, row and pages; nothing of other requests or of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from frostline.engine.counters import SpecCounter
from frostline.engine.finish import NAN_LOGITS, Finish, FinishRules
from frostline.engine.logprobs import LogprobRecord
from frostline.runner.rules import LogitRules
from frostline.speculative.step import TokenLogprobs
from frostline.types import CompletionOutput, Group, RequestOutput, SamplingParams


@dataclass(kw_only=True, eq=False)
class Request:
    """Fixed on arrival: all up to `prompt`. max_new_tokens: after the cap by the context. depth: own draft depth.

    parent: sample 0 of the same prompt, for its other samples.
    row: 0 while waiting and again once finished. pages: what the request holds, by layer group, in table order.
    scheduled: prompt rows whose KV the device has been told to write. output_ids: tokens returned and kept.
    due_least, due_most: bounds on the tokens that launched work has still to return; both 0 with nothing in flight.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_new_tokens: int
    depth: int
    rules: FinishRules
    logit_rules: LogitRules | None = None
    prompt: str | None = None
    parent: Request | None = None

    row: int = 0
    pages: dict[Group, tuple[int, ...]] = field(default_factory=dict)
    scheduled: int = 0
    due_least: int = 0
    due_most: int = 0
    output_ids: list[int] = field(default_factory=list)
    counter: SpecCounter = field(default_factory=SpecCounter)
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.logprobs = LogprobRecord(params=self.params, prompt_ids=self.prompt_ids)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def known(self) -> int:
        """Tokens the host knows: the prompt and what was returned."""
        return self.prompt_len + len(self.output_ids)

    @property
    def is_seeded(self) -> bool:
        """Whether it has a bonus token, so that an iteration can run."""
        return bool(self.output_ids)

    @property
    def committed(self) -> int:
        """`P` as the host knows it: the newest token's KV is not written, so known = P + 1 once seeded."""
        return self.known - 1 if self.is_seeded else self.scheduled

    @property
    def most_committed(self) -> int:
        """The largest `P` that the device can have once all launched work is done; `committed` with none in flight."""
        return self.known + self.due_most - 1 if self.is_seeded or self.due_most else self.scheduled

    @property
    def unscheduled(self) -> int:
        """Prompt tokens still to be prefilled."""
        return self.prompt_len - self.scheduled

    @property
    def wants_iteration(self) -> bool:
        """Whether it has a bonus token, or will have by then, and is not over by length whatever comes back first."""
        emitted = len(self.output_ids) + self.due_least
        return 0 < emitted < self.max_new_tokens

    @property
    def is_finished(self) -> bool:
        return self.finish is not None

    def expect(self, most: int) -> None:
        """Work is launched that returns 1 to `most` tokens."""
        self.due_least += 1
        self.due_most += most

    def accept_seed(self, token: int, *, finite: bool, logprobs: TokenLogprobs | None = None) -> int:
        """The first token, from the prompt's last logits; it may already end the request. How many are kept: 1 or 0.

        Numbers that are not finite may end it earlier: an executor reports them with the chunk that made them.
        """
        if self.is_seeded or (self.unscheduled and finite):
            raise AssertionError(f"{self.request_id}: seeded at {self.known} tokens, {self.unscheduled} not prefilled")
        self._returned(1)
        return self._accept((token,), finite=finite, logprobs=None if logprobs is None else (logprobs,))

    def accept_run(
        self, run: Sequence[int], *, drafted: int, finite: bool, logprobs: tuple[TokenLogprobs, ...] | None = None
    ) -> int:
        """One iteration's tokens: cut by the finish rules, kept, counted. How many are kept."""
        if not self.is_seeded or not 1 <= len(run) <= drafted + 1:
            raise AssertionError(f"{self.request_id}: {len(run)} tokens from {drafted} drafts at {self.known} known")
        self._returned(drafted + 1)
        kept = self._accept(run, finite=finite, logprobs=logprobs)
        if kept:
            self.counter.record(drafted=drafted, committed=len(run), kept=kept)
        return kept

    def end(self, finish: Finish) -> None:
        if self.finish is not None:
            raise AssertionError(f"{self.request_id} ended twice: {self.finish.reason}, then {finish.reason}")
        self.finish = finish

    def output(self) -> RequestOutput:
        """What the user gets; only of a finished request."""
        if self.finish is None:
            raise AssertionError(f"{self.request_id} is not finished")
        completion = CompletionOutput(
            text=self.rules.text(self.output_ids, self.finish),
            token_ids=tuple(self.output_ids),
            finish_reason=self.finish.reason,
            stop_reason=self.finish.stop_reason,
            logprobs=self.logprobs.outputs(self.output_ids, self.rules.spell),
            cumulative_logprob=self.logprobs.total(),
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=(completion,),
            seed=self.seed,
            stats=self.counter.freeze(),
            prompt_logprobs=self.logprobs.prompts(self.rules.spell),
        )

    def _returned(self, most: int) -> None:
        """What `expect` announced is here, or failed before its time: a prompt's chunk without finite numbers."""
        self.due_least = max(0, self.due_least - 1)
        self.due_most = max(0, self.due_most - most)

    def _accept(self, run: Sequence[int], *, finite: bool, logprobs: tuple[TokenLogprobs, ...] | None) -> int:
        """Tokens kept of the run; none when the logits were NaN, which ends this request and no other."""
        if not finite:
            self.end(Finish(reason="error", stop_reason=NAN_LOGITS))
            return 0
        cut = self.rules.cut(run, emitted=len(self.output_ids))
        self.output_ids.extend(run[: cut.length])
        self.logprobs.keep(logprobs, cut.length)
        if cut.finish is not None:
            self.end(cut.finish)
        return cut.length
