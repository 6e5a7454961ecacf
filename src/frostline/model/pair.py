"""Whether an assistant fits a target: it reads the target's keys and values, so their geometry must be the same.

Compares specs and, where both folders ship one, tokenizers. Knows no weights.
"""

from __future__ import annotations

import json
from pathlib import Path

from frostline.errors import ModelError, PairError
from frostline.model.spec import AssistantSpec, LayerSpec, ModelSpec, RopeSpec

TOKENIZER = "tokenizer.json"


def check_pair(
    target: ModelSpec,
    assistant: AssistantSpec,
    *,
    target_folder: Path | None = None,
    assistant_folder: Path | None = None,
) -> None:
    """Raises one PairError that names every mismatch with both values, and what to do.

    Checked: backbone width, vocabulary size, and per layer kind the head size, key-value heads, window and rope of the
    target's layer that the assistant reads; with both folders, the vocabularies of their tokenizer.json.
    """
    found = mismatches(target, assistant)
    if target_folder is not None and assistant_folder is not None:
        found += _tokenizer_mismatches(target_folder, assistant_folder)
    if found:
        raise PairError(
            f"the assistant does not fit the target: {'; '.join(found)}. "
            "Give the assistant made for this target (usually named <target>-assistant), or --draft none"
        )


def mismatches(target: ModelSpec, assistant: AssistantSpec) -> list[str]:
    """Every way in which the specs do not fit, in words; empty for a pair."""
    found: list[str] = []
    _compare(found, "backbone width", assistant.backbone_size, target.hidden_size)
    _compare(found, "vocabulary size", assistant.text.vocab_size, target.vocab_size)
    seen: set[tuple[object, ...]] = set()
    for layer in assistant.text.layers:
        # Layers of one kind are alike; each distinct geometry is reported once.
        geometry = (layer.kind, layer.head_dim, layer.num_kv_heads, layer.window)
        if geometry in seen:
            continue
        seen.add(geometry)
        if not target.owners(layer.kind):
            found.append(f"the assistant has {layer.kind} attention layers, the target has none to read from")
            continue
        _compare_layers(found, layer, target.layers[target.last_owner(layer.kind)])
        _compare_ropes(found, layer.kind, assistant.text.ropes[layer.kind], target.ropes[layer.kind])
    return list(dict.fromkeys(found))


def _compare(found: list[str], what: str, assistant: object, target: object) -> None:
    if assistant != target:
        found.append(f"{what} is {assistant} in the assistant and {target} in the target")


def _compare_layers(found: list[str], assistant: LayerSpec, target: LayerSpec) -> None:
    kind = assistant.kind
    _compare(found, f"head dim of {kind} layers", assistant.head_dim, target.head_dim)
    _compare(found, f"key-value heads of {kind} layers", assistant.num_kv_heads, target.num_kv_heads)
    _compare(found, f"window of {kind} layers", assistant.window, target.window)


def _compare_ropes(found: list[str], kind: str, assistant: RopeSpec, target: RopeSpec) -> None:
    _compare(found, f"rope theta of {kind} layers", assistant.theta, target.theta)
    _compare(found, f"rotated rope pairs of {kind} layers", assistant.rotated, target.rotated)
    _compare(found, f"rope factor of {kind} layers", assistant.factor, target.factor)


def _tokenizer_mismatches(target_folder: Path, assistant_folder: Path) -> list[str]:
    paths = target_folder / TOKENIZER, assistant_folder / TOKENIZER
    if not all(path.is_file() for path in paths):
        return []
    if paths[0].read_bytes() == paths[1].read_bytes():
        return []
    target, assistant = (_vocabulary(path) for path in paths)
    differing = sorted(token for token in target.keys() | assistant.keys() if target.get(token) != assistant.get(token))
    if not differing:
        return []
    token = differing[0]
    return [
        f"the tokenizers differ in {len(differing)} tokens (first {token!r}: id {assistant.get(token)} in the "
        f"assistant and {target.get(token)} in the target)"
    ]


def _vocabulary(path: Path) -> dict[str, int]:
    """Token to id, added tokens included, of a tokenizer.json."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocab = content["model"]["vocab"]
        # Unigram models list [token, score] pairs, the id being the place in the list.
        ids = dict(vocab) if isinstance(vocab, dict) else {entry[0]: index for index, entry in enumerate(vocab)}
        ids |= {entry["content"]: entry["id"] for entry in content.get("added_tokens") or []}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"{path} cannot be read as a tokenizer ({error}); download it again") from None
    return ids
