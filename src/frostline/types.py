"""Values that cross layers: what a user asks for and what comes back. No tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from frostline.errors import ConfigError

FinishReason = Literal["stop", "length", "abort", "error"]

# The two layer kinds, each with a KV pool and page table of its own (architecture 4.4).
Group = Literal["sliding", "full"]
GROUPS: tuple[Group, Group] = ("sliding", "full")

# Most alternatives that a request may ask for beside each token's own log-probability, as in vLLM.
MAX_LOGPROBS = 20

Biases = Mapping[int, float] | tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request samples and where it ends; names and defaults follow vLLM.

    temperature: 0 is greedy. top_k: 0 or -1 keeps all. top_p, min_p: probability bounds, applied after top_k in this
    order; a tie at a threshold is kept. seed: None draws one, reported in the output. max_tokens: new tokens, at most
    what the context leaves; None takes all of it. stop: strings that end the text. stop_token_ids: tokens that end it,
    beside the model's own EOS list unless ignore_eos. num_steps: this request's own draft depth, 0 to the engine's;
    None takes the engine's. n: samples of the prompt, which is prefilled once; sample 0 has this seed, the others seeds
    derived from it. cache_salt: only requests of the same salt, None being one too, share what they compute of prompts
    that begin alike, so that nobody learns from its speed what others asked.

    frequency_penalty, presence_penalty: -2 to 2, taken from a logit per time / once that the output has its token.
    repetition_penalty: above 0; divides positive and multiplies negative logits of tokens in prompt or output.
    logit_bias: token id to what is added to its logit, -100 to 100; kept as pairs. min_tokens: EOS and stop tokens
    cannot be emitted, stop strings not be completed, before this many. allowed_token_ids: nothing else is emitted,
    EOS included; None allows all. They apply in this order, before the temperature.

    logprobs: log-probabilities of each emitted token and of this many most likely ones, 0 to 20; None gives none. They
    are the model's own: of its logits before penalties, bias, masks, temperature and filters. prompt_logprobs: the same
    for every prompt token but the first.

    Raises ConfigError for a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] | list[str] | str | None = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    num_steps: int | None = None
    n: int = 1
    cache_salt: str | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Biases | None = None
    min_tokens: int = 0
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        # The comparisons are written so that NaN fails them.
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(
                f"temperature must be a finite number of at least 0 (0 is greedy), got {self.temperature}"
            )
        if self.top_k < -1:
            raise ConfigError(f"top_k must be -1 or 0 (keep all) or a positive count, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p must be above 0 and at most 1 (1 keeps all), got {self.top_p}")
        if not 0.0 <= self.min_p <= 1.0:
            raise ConfigError(f"min_p must be 0 (keep all) to 1, got {self.min_p}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be 0 to 2**63 - 1, got {self.seed}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if any(not s for s in stop):
            raise ConfigError("stop strings must not be empty")
        if self.num_steps is not None and self.num_steps < 0:
            raise ConfigError(f"num_steps must be 0 (no drafting for this request) or more, got {self.num_steps}")
        if self.n < 1:
            raise ConfigError(f"n must be at least 1 sample, got {self.n}")
        self._check_logit_rules()
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
                raise ConfigError(f"{name} must be 0 (the token's own only) to {MAX_LOGPROBS}, got {wanted}")

    def _check_logit_rules(self) -> None:
        """What changes logits; ids are brought to tuples, so that the parameters stay hashable."""
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ConfigError(f"{name} must be -2 to 2 (0 is off), got {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ConfigError(f"repetition_penalty must be above 0 (1 is off), got {self.repetition_penalty}")
        object.__setattr__(self, "logit_bias", self.bias_pairs or None)
        for token, bias in self.bias_pairs:
            if not isfinite(bias) or abs(bias) > 100.0:
                raise ConfigError(
                    f"logit_bias must be -100 to 100, got {bias} for token {token}; to forbid all but some tokens use "
                    f"allowed_token_ids"
                )
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise ConfigError(f"min_tokens must be 0 to max_tokens ({self.max_tokens}), got {self.min_tokens}")
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ConfigError("allowed_token_ids is empty, so no token could be emitted; leave it out to allow all")

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as (token id, bias) pairs in order of ids."""
        given = self.logit_bias or ()
        pairs = given.items() if isinstance(given, Mapping) else given
        return tuple(sorted((int(token), float(bias)) for token, bias in pairs))

    @property
    def is_penalised(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as it was normalised at construction."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def is_sampled(self) -> bool:
        return self.temperature > 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether top-k, top-p or min-p can drop a token; greedy rows are never filtered."""
        return self.is_sampled and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, kw_only=True)
class SpecStats:
    """Counters of one request. `iterations` counts runs; the first token comes from prefill and is not in a run.

    run_lengths: tokens that each run gave the user, after the cut by the finish rules, for marking accepted drafts;
    `emitted = 1 + sum(run_lengths)` always, once there is a first token.
    drafted_per_depth[d] and accepted_per_depth[d]: runs in which a draft at depth d + 1 was offered / accepted and
    given to the user. A run that is cut counts the depths up to its cut and no more in both, so a rate is not bent by
    where requests end; `drafted` is the sum over depths. `emitted = 1 + iterations + sum(accepted_per_depth)`, less one
    when the last run was cut inside.
    """

    iterations: int = 0
    drafted: int = 0
    drafted_per_depth: tuple[int, ...] = ()
    accepted_per_depth: tuple[int, ...] = ()
    run_lengths: tuple[int, ...] = ()

    @property
    def accept_length(self) -> float:
        """Mean tokens per run, bonus included; 0.0 before the first run."""
        return sum(self.run_lengths) / self.iterations if self.iterations else 0.0

    @classmethod
    def total(cls, stats: Sequence[SpecStats]) -> SpecStats:
        """Sums over requests; run_lengths one request's after the other's."""
        return cls(
            iterations=sum(one.iterations for one in stats),
            drafted=sum(one.drafted for one in stats),
            drafted_per_depth=_by_depth([one.drafted_per_depth for one in stats]),
            accepted_per_depth=_by_depth([one.accepted_per_depth for one in stats]),
            run_lengths=tuple(length for one in stats for length in one.run_lengths),
        )


def _by_depth(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    depth = max(map(len, counts), default=0)
    return tuple(sum(row[d] for row in counts if d < len(row)) for d in range(depth))


@dataclass(frozen=True, kw_only=True)
class Logprob:
    """One token's log-probability under the model. rank: 1 is the best. decoded_token: None without a tokenizer."""

    logprob: float
    rank: int
    decoded_token: str | None = None


# At one position: the token that is there, first, and the most likely ones in descending order.
Logprobs = Mapping[int, Logprob]


@dataclass(frozen=True, kw_only=True)
class CompletionOutput:
    """One completion: text without the stop string unless asked for, ids and log-probabilities cut at the same place.

    index: which of the request's samples it is. logprobs: one entry per id, when asked for. cumulative_logprob: the
    sum over the ids' own.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    index: int = 0
    logprobs: tuple[Logprobs, ...] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, kw_only=True)
class RequestOutput:
    """One finished request. `seed` is the seed that was used, drawn when the request named none.

    prompt_logprobs: one entry per prompt token, None for the first, when asked for. num_cached_tokens: tokens that were
    not prefilled for it, since the prefix cache or another of its samples had them. num_preemptions: how often it lost
    its pages to an older request and was computed again. stats and these two are sums over the samples.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    seed: int
    stats: SpecStats = field(default_factory=SpecStats)
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamOutput:
    """What came to one sample since its last StreamOutput: text and ids to be appended.

    The texts of a sample add up to the text of its CompletionOutput, the ids to its ids. Text may lag behind the ids: a
    piece never splits a character or shows the beginning of a stop string. prompt_index, index: which prompt of the
    call, which sample of it. finish_reason: set in the last one of the sample. output: set in the last one of the
    request, the whole of it. logprobs: one entry per id, when asked for.
    """

    request_id: str
    prompt_index: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[Logprobs, ...] | None = None
    output: RequestOutput | None = None
