"""One meaning for every spelling of speculation: our own options, SGLang's flags and vLLM's JSON become one config.

A value that is given twice must be the same twice. Knows option names and rules only; whether a folder really holds an
assistant is for the loader to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from frostline.config import DepthTable, DraftPosition, DraftSampling, SpeculativeConfig
from frostline.errors import ConfigError

T = TypeVar("T")

OWN_NAME = "FROZEN_KV_MTP"
VLLM_FLAG = "--speculative-config"
VLLM_KEYS = ("method", "model", "num_speculative_tokens")

# Names under which other engines run a Gemma 4 assistant; with one, they all mean Frozen-KV MTP.
_OWN = (OWN_NAME, "MTP", "GEMMA4_MTP")
_PROMOTED = ("NEXTN", "EAGLE", "DRAFT_MODEL")
_REFUSED: Mapping[str, str] = {
    "EAGLE3": "it drafts from hidden states of several target layers, and a Gemma 4 assistant reads only the last one",
    "STANDALONE": "a draft model with a KV cache of its own is not supported; an assistant reads the target's",
    "NGRAM": "drafts come from an assistant here, not from earlier text",
    "SUFFIX": "drafts come from an assistant here, not from earlier text",
    "MEDUSA": "extra heads on the target are not supported",
}


@dataclass(frozen=True, kw_only=True)
class SpeculationArgs:
    """What the user wrote, by spelling; None is "not given"."""

    draft: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    sglang_algorithm: str | None = None
    sglang_draft_model_path: str | None = None
    sglang_num_steps: int | None = None
    sglang_eagle_topk: int | None = None
    sglang_num_draft_tokens: int | None = None
    vllm_config: str | None = None
    draft_position: DraftPosition = "auto"
    draft_sampling: DraftSampling = "coupled"
    depth_table: str | None = None


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """What it means. draft: "auto", "none" or a model. explicit: drafting was asked for, so doing without is an error.

    notices: lines for the user about names that were read as something else.
    """

    draft: str
    config: SpeculativeConfig
    explicit: bool
    notices: tuple[str, ...] = ()


def resolve_speculation(args: SpeculationArgs) -> Speculation:
    """Merges all spellings.

    Raises ConfigError naming both spellings where two contradict each other, the key of a vLLM config that is not
    known, the algorithm that is not supported with the reason, or the rule that a combination of sizes breaks.
    """
    vllm = _read_vllm(args.vllm_config)
    notices: list[str] = []
    algorithm = _merge(
        ("--speculative-algorithm", _algorithm("--speculative-algorithm", args.sglang_algorithm, notices)),
        (f"{VLLM_FLAG} method", _algorithm(f"{VLLM_FLAG} method", vllm.get("method"), notices)),
    )
    draft = _merge(
        ("--draft", args.draft),
        ("--speculative-draft-model-path", args.sglang_draft_model_path),
        (f"{VLLM_FLAG} model", vllm.get("model")),
    )
    steps = _merge(
        ("--num-steps", args.num_steps),
        ("--speculative-num-steps", args.sglang_num_steps),
        (f"{VLLM_FLAG} num_speculative_tokens", vllm.get("num_speculative_tokens")),
    )
    topk = _merge(("--topk", args.topk), ("--speculative-eagle-topk", args.sglang_eagle_topk))
    width = _merge(
        ("--num-draft-tokens", args.num_draft_tokens),
        ("--speculative-num-draft-tokens", args.sglang_num_draft_tokens),
    )
    sizes = [pair for pair in (steps, topk, width) if pair is not None]
    off = _switched_off(algorithm, draft)
    if off is not None:
        named = [pair for pair in (algorithm, draft) if pair is not None and pair[1] not in ("NONE", "none", "auto")]
        table: list[tuple[str, Any]] = [] if args.depth_table is None else [("--depth-table", args.depth_table)]
        _refuse_beside(off, [*named, *(pair for pair in sizes if pair[1] != (0 if pair is steps else 1)), *table])
        return Speculation(draft="none", config=SpeculativeConfig(num_steps=0), explicit=False)
    config = SpeculativeConfig.derive(
        num_steps=None if steps is None else steps[1],
        topk=None if topk is None else topk[1],
        num_draft_tokens=None if width is None else width[1],
        draft_position=args.draft_position,
        draft_sampling=args.draft_sampling,
        depth_table=None if args.depth_table is None else DepthTable.parse(args.depth_table),
    )
    explicit = config.num_steps > 0 and (algorithm is not None or args.depth_table is not None or bool(sizes))
    return Speculation(
        draft="auto" if draft is None else draft[1], config=config, explicit=explicit, notices=tuple(notices)
    )


def _merge(*spellings: tuple[str, T | None]) -> tuple[str, T] | None:
    """The one value that was given, with the name it was given under."""
    found: tuple[str, T] | None = None
    for name, value in spellings:
        if value is None:
            continue
        if found is not None and found[1] != value:
            raise ConfigError(f"{found[0]} {found[1]} and {name} {value} contradict each other; give one of them")
        found = found or (name, value)
    return found


def _algorithm(spelling: str, name: str | None, notices: list[str]) -> str | None:
    """Our name for an algorithm ("NONE" or FROZEN_KV_MTP); a promotion is added to `notices`, once per name."""
    if name is None:
        return None
    upper = name.upper().replace("-", "_")
    if upper == "NONE" or upper in _OWN:
        return "NONE" if upper == "NONE" else OWN_NAME
    if upper in _PROMOTED:
        notice = f"{spelling} {name} with a Gemma 4 assistant is Frozen-KV MTP and runs as {OWN_NAME}"
        notices.append(notice)
        return OWN_NAME
    known = f"use {OWN_NAME} (NEXTN, EAGLE and vLLM's mtp mean the same), or NONE for plain decoding"
    if upper in _REFUSED:
        raise ConfigError(f"{spelling} {name} is refused: {_REFUSED[upper]}; {known}")
    raise ConfigError(f"{spelling} {name} is not known; {known}")


def _switched_off(algorithm: tuple[str, str] | None, draft: tuple[str, str] | None) -> tuple[str, str] | None:
    if algorithm is not None and algorithm[1] == "NONE":
        return algorithm
    if draft is not None and draft[1] == "none":
        return draft
    return None


def _refuse_beside(off: tuple[str, str], asking: Sequence[tuple[str, Any]]) -> None:
    """Plain decoding was asked for; anything beside it that asks for drafts is refused, not ignored."""
    for name, value in asking:
        raise ConfigError(
            f"{off[0]} {off[1]} decodes without drafts and {name} {value} asks for them; give one of them"
        )


def _read_vllm(text: str | None) -> dict[str, Any]:
    """The keys of vLLM's JSON that mean something here, types checked."""
    if text is None:
        return {}
    example = """'{"method": "mtp", "model": "PATH", "num_speculative_tokens": 4}'"""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{VLLM_FLAG} is not JSON ({error}); for example {example}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{VLLM_FLAG} must be a JSON object, for example {example}")
    unknown = [key for key in value if key not in VLLM_KEYS]
    if unknown:
        raise ConfigError(
            f"{VLLM_FLAG} has keys that are not supported: {', '.join(unknown)}; supported: {', '.join(VLLM_KEYS)}"
        )
    for key, kind in (("method", str), ("model", str), ("num_speculative_tokens", int)):
        item = value.get(key)
        if item is not None and (not isinstance(item, kind) or isinstance(item, bool)):
            raise ConfigError(f"{VLLM_FLAG} {key} must be {'a string' if kind is str else 'a whole number'}: {item!r}")
    return value
