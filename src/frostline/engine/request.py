"""One request's state: few lengths are stored, the rest is derived.

Knows its own tokens and its stay on the device; nothing of other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from frostline.cache.prefix import PrefixChain
from frostline.engine.counters import SpecCounter
from frostline.engine.finish import NAN_LOGITS, Finish, FinishRules
from frostline.engine.logprobs import LogprobRecord
from frostline.engine.stay import Stay
from frostline.runner.rules import LogitRules
from frostline.speculative.step import TokenLogprobs
from frostline.types import CompletionOutput, RequestOutput, SamplingParams


@dataclass(kw_only=True, eq=False)
class Request:
    """Fixed at arrival: all up to `parent`. max_new_tokens: after the cap by the context. depth: own draft depth.

    parent: sample 0 of the same prompt, for its other samples. chain: the keys of its full pages; None for a request
    that shares none.
    cached_tokens, preemptions: prompt tokens, or tokens it had, that others had computed; how often it was preempted.
    output_ids: tokens returned and kept. stay: what it has on the device, with what was launched for it; None while it
    waits, for the first time or after a preemption, and once it is over.
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

    chain: PrefixChain | None = None
    output_ids: list[int] = field(default_factory=list)
    counter: SpecCounter = field(default_factory=SpecCounter)
    finish: Finish | None = None
    stay: Stay | None = None
    cached_tokens: int = 0
    preemptions: int = 0

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
    def row(self) -> int:
        """Its row on the device; 0 without one."""
        return 0 if self.stay is None else self.stay.row

    @property
    def rows_to_prefill(self) -> int:
        """KV rows to write before it can iterate: all it knows but the bonus, which it has once it was seeded."""
        return self.known - 1 if self.output_ids else self.prompt_len

    @property
    def committed(self) -> int:
        """`P` as the host knows it: known = P + 1, once its prefill has returned."""
        stay = self.on_device
        return self.known - 1 if self.output_ids and stay.prefilled == stay.target else stay.prefilled

    @property
    def most_committed(self) -> int:
        """The largest `P` that the device can have once all launched work is done."""
        stay = self.on_device
        return stay.scheduled if stay.unscheduled else self.known + stay.due_most - 1

    @property
    def wants_prefill(self) -> bool:
        return self.stay is not None and self.stay.unscheduled > 0

    @property
    def wants_iteration(self) -> bool:
        """Whether it has a bonus token, or will have by then, and is not over by length whatever comes back first."""
        if self.stay is None or self.stay.unscheduled:
            return False
        return 0 < len(self.output_ids) + self.stay.due_least < self.max_new_tokens

    @property
    def may_be_over(self) -> bool:
        """Whether the work in flight can end it by length."""
        return self.stay is not None and len(self.output_ids) + self.stay.due_most >= self.max_new_tokens

    @property
    def is_likely_over(self) -> bool:
        """Whether it does, if its next run is as long as those before were on average."""
        return self.may_be_over and len(self.output_ids) + self.counter.mean_run >= self.max_new_tokens

    @property
    def on_device(self) -> Stay:
        """Its stay, which it must have."""
        if self.stay is None:
            raise AssertionError(f"{self.request_id} is not on the device")
        return self.stay

    @property
    def is_finished(self) -> bool:
        return self.finish is not None

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Known tokens `[start, end)`."""
        split = self.prompt_len
        return (*self.prompt_ids[start:end], *self.output_ids[max(0, start - split) : max(0, end - split)])

    def enter(self, stay: Stay) -> None:
        if self.stay is not None or self.finish is not None:
            raise AssertionError(f"{self.request_id} is on the device or over, and was admitted")
        self.stay = stay

    def leave(self) -> Stay:
        """End its stay, whose work in flight is nothing to it any more; whoever asked releases what it held."""
        stay, self.stay = self.on_device, None
        return stay

    def expect(self, most: int) -> None:
        """Work is launched that returns 1 to `most` tokens."""
        stay = self.on_device
        stay.due_least += 1
        stay.due_most += most

    def accept_chunk(self, rows: int) -> None:
        """The rows up to `rows` are written and finite."""
        stay = self.on_device
        if not stay.prefilled <= rows <= stay.scheduled:
            raise AssertionError(f"{self.request_id}: a chunk up to {rows}, {stay.scheduled} scheduled")
        stay.prefilled = rows

    def accept_seed(self, token: int, *, finite: bool, logprobs: TokenLogprobs | None = None) -> int:
        """The first token, from the prompt's last logits; it may already end the request. How many are kept: 1 or 0.

        When it resumes, the token is the one that it has. Numbers that are not finite may come earlier: an executor
        reports them with the chunk that made them.
        """
        stay = self.on_device
        if not finite:
            return self._accept((), finite=False, logprobs=None)
        if stay.unscheduled:
            raise AssertionError(f"{self.request_id}: seeded with {stay.unscheduled} rows not prefilled")
        if not self.output_ids:
            self._returned(1)
            return self._accept((token,), finite=True, logprobs=None if logprobs is None else (logprobs,))
        if token != self.output_ids[-1]:
            raise AssertionError(f"{self.request_id}: resumed with token {token}, it had {self.output_ids[-1]}")
        return 0

    def accept_run(
        self, run: Sequence[int], *, drafted: int, finite: bool, logprobs: tuple[TokenLogprobs, ...] | None = None
    ) -> int:
        """One iteration's tokens: cut by the finish rules, kept, counted. How many are kept."""
        if not self.output_ids or not 1 <= len(run) <= drafted + 1:
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
            num_cached_tokens=self.cached_tokens,
            num_preemptions=self.preemptions,
        )

    def _returned(self, most: int) -> None:
        """What `expect` announced is here."""
        stay = self.on_device
        stay.due_least -= 1
        stay.due_most -= most
        if not 0 <= stay.due_least <= stay.due_most:
            raise AssertionError(f"{self.request_id}: {most} tokens returned that nobody expected")

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
