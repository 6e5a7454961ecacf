"""The options that generate, demo, bench and inspect share, declared once as groups.

A command takes whole groups as parameters; `grouped` spreads their fields into command-line options for typer and puts
them together again for the command. Knows no model and no tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, get_type_hints

import typer

from frostline.cli.dialects import Speculation, SpeculationArgs, resolve_speculation
from frostline.config import DraftPosition, DraftSampling, Schedule
from frostline.errors import ConfigError
from frostline.types import SamplingParams

DType = Literal["auto", "float32", "float64", "bfloat16", "float16"]
BUNDLED = "frostline/tiny"

_MODEL = "Model"
_ENGINE = "Engine"
_DRAFTS = "Drafts"
_SGLANG = "Drafts, in SGLang's and vLLM's spelling"
_SAMPLING = "Sampling"


def _option(panel: str, flag: str, help_text: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which target, where and in what precision."""

    model: Annotated[
        str, _option(_MODEL, "--model", "Folder, hub id, or frostline/tiny, the bundled target.", "MODEL")
    ] = BUNDLED
    device: Annotated[
        str, _option(_MODEL, "--device", "auto (cuda where there is one), cpu, cuda or cuda:INDEX.", "DEVICE")
    ] = "auto"
    dtype: Annotated[
        DType, _option(_MODEL, "--dtype", "auto is float32 on the CPU and bfloat16 on a GPU; float64 is exact.")
    ] = "auto"
    dummy_weights: Annotated[
        bool, _option(_MODEL, "--dummy-weights", "Random weights in the shapes of the config; no checkpoint is read.")
    ] = False
    max_model_len: Annotated[
        int | None,
        _option(_MODEL, "--max-model-len", "Tokens per request, prompt included; the model's own when left out."),
    ] = None
    max_num_seqs: Annotated[int, _option(_MODEL, "--max-num-seqs", "Requests that run at once.")] = 64


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the engine's loop works; the tokens are the same, whatever is chosen."""

    schedule: Annotated[
        Schedule,
        _option(_ENGINE, "--schedule", "overlap launches the next step before it reads the last; sync waits for each."),
    ] = "overlap"


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """How far and how wide to draft, in three spellings. Nothing given: 4 steps, a chain, the assistant beside the
    target."""

    draft: Annotated[
        str | None,
        _option(
            _DRAFTS, "--draft", "auto finds MODEL-assistant beside the target; none decodes plainly.", "auto|none|PATH"
        ),
    ] = None
    num_steps: Annotated[int | None, _option(_DRAFTS, "--num-steps", "Draft depth K, 0 to 8.", "K")] = None
    topk: Annotated[int | None, _option(_DRAFTS, "--topk", "Children per node, 1 (a chain) to 8.", "k")] = None
    num_draft_tokens: Annotated[
        int | None,
        _option(_DRAFTS, "--num-draft-tokens", "Nodes verified at once, root included; K + 1 for a chain.", "N"),
    ] = None
    draft_position: Annotated[
        DraftPosition, _option(_DRAFTS, "--draft-position", "Position of the assistant's queries.")
    ] = "auto"
    draft_sampling: Annotated[
        DraftSampling, _option(_DRAFTS, "--draft-sampling", "How drafts are drawn at a temperature above 0.")
    ] = "coupled"
    depth_table: Annotated[
        str | None,
        _option(
            _DRAFTS,
            "--depth-table",
            "Depth by load: 1:6,8:4,32:2,64:0 drafts 6 deep for 1 to 7 requests at once, 4 from 8 on, 2 from 32 on and "
            "not at all from 64 on. The tokens are the same at any depth.",
            "B:K,B:K,...",
        ),
    ] = None
    speculative_algorithm: Annotated[
        str | None,
        _option(_SGLANG, "--speculative-algorithm", "", "NEXTN|EAGLE|FROZEN_KV_MTP|NONE"),
    ] = None
    speculative_draft_model_path: Annotated[
        str | None, _option(_SGLANG, "--speculative-draft-model-path", "As --draft.", "PATH")
    ] = None
    speculative_num_steps: Annotated[
        int | None, _option(_SGLANG, "--speculative-num-steps", "As --num-steps.", "K")
    ] = None
    speculative_eagle_topk: Annotated[int | None, _option(_SGLANG, "--speculative-eagle-topk", "As --topk.", "k")] = (
        None
    )
    speculative_num_draft_tokens: Annotated[
        int | None, _option(_SGLANG, "--speculative-num-draft-tokens", "As --num-draft-tokens.", "N")
    ] = None
    speculative_config: Annotated[
        str | None,
        _option(_SGLANG, "--speculative-config", "vLLM's: keys method, model, num_speculative_tokens.", "JSON"),
    ] = None

    def resolve(self) -> Speculation:
        """One meaning for all spellings; raises ConfigError for contradictions and impossible sizes."""
        return resolve_speculation(
            SpeculationArgs(
                draft=self.draft,
                num_steps=self.num_steps,
                topk=self.topk,
                num_draft_tokens=self.num_draft_tokens,
                sglang_algorithm=self.speculative_algorithm,
                sglang_draft_model_path=self.speculative_draft_model_path,
                sglang_num_steps=self.speculative_num_steps,
                sglang_eagle_topk=self.speculative_eagle_topk,
                sglang_num_draft_tokens=self.speculative_num_draft_tokens,
                vllm_config=self.speculative_config,
                draft_position=self.draft_position,
                draft_sampling=self.draft_sampling,
                depth_table=self.depth_table,
            )
        )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen and where the text ends; greedy unless a temperature is given."""

    temperature: Annotated[float, _option(_SAMPLING, "--temperature", "0 is greedy.")] = 0.0
    top_k: Annotated[int, _option(_SAMPLING, "--top-k", "Most likely tokens kept; 0 keeps all.")] = 0
    top_p: Annotated[float, _option(_SAMPLING, "--top-p", "Probability mass kept, above 0; 1 keeps all.")] = 1.0
    min_p: Annotated[float, _option(_SAMPLING, "--min-p", "Least probability beside the best token's.")] = 0.0
    seed: Annotated[int | None, _option(_SAMPLING, "--seed", "Same seed, same tokens; drawn when left out.")] = None
    max_tokens: Annotated[int, _option(_SAMPLING, "--max-tokens", "New tokens per prompt.")] = 128
    stop: Annotated[
        list[str] | None, _option(_SAMPLING, "--stop", "Text that ends the output; may be repeated.", "TEXT")
    ] = None
    min_tokens: Annotated[
        int, _option(_SAMPLING, "--min-tokens", "New tokens before EOS, a stop token or a stop text can end it.")
    ] = 0
    frequency_penalty: Annotated[
        float, _option(_SAMPLING, "--frequency-penalty", "Taken from a logit for each time it was emitted, -2 to 2.")
    ] = 0.0
    presence_penalty: Annotated[
        float, _option(_SAMPLING, "--presence-penalty", "Taken from a logit once it was emitted, -2 to 2.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, _option(_SAMPLING, "--repetition-penalty", "Above 1 makes tokens of prompt and output less likely.")
    ] = 1.0
    logit_bias: Annotated[
        list[str] | None,
        _option(_SAMPLING, "--logit-bias", "Added to a token's logit, -100 to 100; may be repeated.", "ID=BIAS"),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, _option(_SAMPLING, "--allowed-token-id", "Emit only this token; may be repeated.", "ID")
    ] = None

    def params(self, *, ignore_eos: bool = False) -> SamplingParams:
        """Raises ConfigError for a value out of range."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            ignore_eos=ignore_eos,
            min_tokens=self.min_tokens,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(_bias(given) for given in self.logit_bias or ()),
            allowed_token_ids=self.allowed_token_ids,
        )

    def seeded(self, seed: int) -> SamplingOptions:
        """The same with this seed where the user gave none: runs that are compared must share one."""
        return self if self.seed is not None else replace(self, seed=seed)


def _bias(given: str) -> tuple[int, float]:
    token, _, bias = given.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ConfigError(f"--logit-bias takes a token id and a number, such as 106=-2.5; got {given!r}") from None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A typer command whose parameters may be option groups (dataclasses); their fields become options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    spread: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            spread.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        groups[name] = hints[name]
        field_hints = get_type_hints(hints[name], include_extras=True)
        spread += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field_hints[field.name]
            )
            for field in fields(hints[name])
        ]

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in spread}
    run.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    return run
