"""What `bench latency` measures: cases that take turns for several rounds, the median round counting.

Every case is warmed up first, and what else the machine does meets all of them alike. Knows the engine as something
that generates; the baseline is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from frostline.cli.loading import Generator, Prompt
from frostline.cli.measure import Totals, timed
from frostline.cli.options import ModelOptions
from frostline.config import DraftSampling, SpeculativeConfig
from frostline.types import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from frostline.cli.baseline import TransformersBaseline

BASELINE = "transformers"
Tokens = list[tuple[int, ...]]
Measured = tuple[Tokens, float, list[RequestOutput]]  # the outputs are the engine's, none for the baseline
Run = Callable[[int | None], Measured]
T = TypeVar("T")


@dataclass(kw_only=True)
class Case:
    """One thing to measure. run: takes how many batches (None is all), gives what came out and the seconds it took."""

    mode: str
    batch: int
    draft_sampling: DraftSampling | None
    config: SpeculativeConfig | None
    run: Run
    seconds: list[float] = field(default_factory=list)
    tokens: Tokens = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)

    def measure(self) -> None:
        self.tokens, seconds, self.outputs = self.run(None)
        self.seconds.append(seconds)

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.tokens)) / median(self.seconds)


def in_batches(prompts: Sequence[T], size: int) -> list[list[T]]:
    """All prompts in order in batches of exactly `size`; the last is filled from the beginning again."""
    full = list(islice(cycle(prompts), -(-len(prompts) // size) * size))
    return [full[start : start + size] for start in range(0, len(full), size)]


def engine_cases(
    llm: Generator, configs: dict[str, SpeculativeConfig], batches: list[list[Prompt]], params: SamplingParams
) -> list[Case]:
    """One case per mode; drafting modes twice when sampling, once for each way to draw drafts."""
    both: tuple[DraftSampling, ...] = ("coupled", "argmax")
    cases: list[Case] = []
    for mode, config in configs.items():
        kinds = both if params.temperature > 0 and config.num_steps > 0 else (config.draft_sampling,)
        for kind in kinds:
            own = replace(config, draft_sampling=kind)
            cases.append(
                Case(
                    mode=mode,
                    batch=len(batches[0]),
                    draft_sampling=kind if params.temperature > 0 and config.num_steps > 0 else None,
                    config=own,
                    run=_engine_run(llm.with_speculative(own), batches, params),
                )
            )
    return cases


def baseline_cases(
    llm: Generator, model: ModelOptions, prompts: list[Prompt], batches: Sequence[int], max_tokens: int
) -> list[Case]:
    """transformers on the same token ids, device and dtype."""
    baseline = open_baseline(model)
    probe = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    ids = [item.prompt_token_ids for item in llm.generate(prompts, probe, use_tqdm=False)]

    def run_of(size: int) -> Run:
        def run(limit: int | None) -> Measured:
            tokens: Tokens = []
            total = 0.0
            for batch in in_batches(ids, size)[:limit]:
                done, seconds = baseline.generate(batch, max_tokens)
                tokens += done
                total += seconds
            return tokens, total, []

        return run

    return [Case(mode=BASELINE, batch=size, draft_sampling=None, config=None, run=run_of(size)) for size in batches]


def open_baseline(model: ModelOptions) -> TransformersBaseline:
    """transformers' model of the same folder, device and dtype as the engine's."""
    import torch

    from frostline.cli.baseline import TransformersBaseline
    from frostline.model.dtypes import resolve_dtype
    from frostline.model.resolve import resolve_model
    from frostline.model.spec import read_config, target_spec

    folder = resolve_model(model.model)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if model.device == "auto" else model.device)
    dtype = resolve_dtype(model.dtype, config_dtype=target_spec(read_config(folder)).dtype, device=device)
    return TransformersBaseline(folder, device=device, dtype=dtype)


def measure_interleaved(cases: Sequence[Case], rounds: int) -> None:
    """One unmeasured batch each, then `rounds` turns in which every case runs once."""
    for case in cases:
        case.run(1)
    for _ in range(rounds):
        for case in cases:
            case.measure()


def as_row(case: Case, cases: Sequence[Case]) -> dict[str, Any]:
    """One case for JSON; ratios are to the case of the same batch, None where it was not measured."""
    plain = _same_batch(case, cases, "plain")
    row: dict[str, Any] = {
        "mode": case.mode,
        "batch": case.batch,
        "requests": len(case.tokens),
        "draft_sampling": case.draft_sampling,
        "tokens_per_s": round(case.tokens_per_s, 2),
        "seconds": [round(value, 4) for value in case.seconds],
        "to_plain": _ratio(case, plain),
        "to_transformers": _ratio(case, _same_batch(case, cases, BASELINE)),
        "same_tokens_as_plain": None if plain is None else sum(map(_equal, case.tokens, plain.tokens)),
    }
    if case.config is not None and case.config.num_steps > 0:
        row |= {
            "num_steps": case.config.num_steps,
            "topk": case.config.topk,
            "num_draft_tokens": case.config.verify_width,
            **{key: value for key, value in Totals.of(case.outputs).as_json().items() if key != "requests"},
        }
    return row


def _engine_run(llm: Generator, batches: list[list[Prompt]], params: SamplingParams) -> Run:
    def run(limit: int | None) -> Measured:
        tokens: Tokens = []
        outputs: list[RequestOutput] = []
        total = 0.0
        for prompts in batches[:limit]:
            done, seconds = timed(llm, prompts, params)
            tokens += [item.outputs[0].token_ids for item in done]
            outputs += done
            total += seconds
        return tokens, total, outputs

    return run


def _same_batch(case: Case, cases: Sequence[Case], mode: str) -> Case | None:
    return next((other for other in cases if other.mode == mode and other.batch == case.batch), None)


def _ratio(case: Case, other: Case | None) -> float | None:
    return None if other is None else round(case.tokens_per_s / other.tokens_per_s, 3)


def _equal(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return left == right
