"""Pairs: every released assistant fits its own target and no other, and the reason is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frostline.errors import ModelError, PairError
from frostline.model.pair import check_pair
from frostline.model.spec import AssistantSpec, LayerSpec, ModelSpec, assistant_spec, read_config, target_spec
from tests.model.test_spec import NAMES, folder


def _target(name: str = "E4B") -> ModelSpec:
    return target_spec(read_config(folder(name)))


def _assistant(name: str = "E4B") -> AssistantSpec:
    return assistant_spec(read_config(folder(name, assistant=True)))


def _edited(name: str = "E4B", **changes: Any) -> AssistantSpec:
    config = read_config(folder(name, assistant=True))
    config["text_config"] |= changes
    return assistant_spec(config)


def _refused(target: ModelSpec, assistant: AssistantSpec, *words: str) -> None:
    with pytest.raises(PairError) as caught:
        check_pair(target, assistant)
    message = str(caught.value)
    assert "\n" not in message and "--draft none" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("assistant", NAMES)
def test_only_its_own_target_fits(target: str, assistant: str) -> None:
    if target == assistant:
        check_pair(_target(target), _assistant(assistant))
    else:
        width = _assistant(assistant).backbone_size
        _refused(_target(target), _assistant(assistant), f"backbone width is {width} in the assistant")


def test_every_mismatch_is_named_with_both_values() -> None:
    _refused(
        _target("E2B"),
        _assistant("31B"),
        "backbone width is 5376 in the assistant and 1536 in the target",
        "key-value heads of sliding layers is 16 in the assistant and 1 in the target",
        "key-value heads of full layers is 4 in the assistant and 1 in the target",
        "window of sliding layers is 1024 in the assistant and 512 in the target",
    )


# Each of these made acceptance drop to nothing without a word somewhere (reported.md rows 22 and 23).
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 1024}, "window of sliding layers is 1024 in the assistant and 512 in the target"),
        ({"head_dim": 128}, "head dim of sliding layers is 128 in the assistant and 256 in the target"),
        ({"global_head_dim": 256}, "head dim of full layers is 256 in the assistant and 512 in the target"),
        ({"num_key_value_heads": 1}, "key-value heads of full layers is 1 in the assistant and 2 in the target"),
        ({"vocab_size": 131072}, "vocabulary size is 131072 in the assistant and 262144 in the target"),
    ],
)
def test_reported_22_geometry_is_checked(changes: dict[str, Any], words: str) -> None:
    _refused(_target(), _edited(**changes), words)


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("full_attention", {"rope_theta": 1e4}, "rope theta of full layers is 10000.0"),
        ("full_attention", {"partial_rotary_factor": 1.0}, "rotated rope pairs of full layers is 256"),
        ("full_attention", {"factor": 8.0}, "rope factor of full layers is 8.0"),
        ("sliding_attention", {"rope_theta": 1e6}, "rope theta of sliding layers is 1000000.0"),
    ],
)
def test_rope_is_checked(kind: str, params: dict[str, float], words: str) -> None:
    config = read_config(folder("E4B", assistant=True))
    config["text_config"]["rope_parameters"][kind] |= params
    _refused(_target(), assistant_spec(config), words)


def test_reported_23_each_layer_kind_reads_its_own_group() -> None:
    target, assistant = _target(), _assistant()
    full_only = replace(
        target,
        layers=tuple(replace(layer, kind="full", window=None, head_dim=512) for layer in target.layers),
        ropes={"full": target.ropes["full"]},
    )
    _refused(full_only, assistant, "sliding attention layers, the target has none")
    # A kind that all layers of the target only share has no rows of its own either.
    assert not full_only.owners("sliding")


def test_a_layer_that_differs_from_the_others_of_its_kind_is_found() -> None:
    assistant = _assistant()
    layers: list[LayerSpec] = list(assistant.text.layers)
    layers[2] = replace(layers[2], head_dim=64)
    changed = replace(assistant, text=replace(assistant.text, layers=tuple(layers)))
    _refused(_target(), changed, "head dim of sliding layers is 64")


def _tokenizer(path: Path, vocab: dict[str, int] | list[list[Any]], added: dict[str, int] | None = None) -> Path:
    path.mkdir()
    content = {
        "model": {"vocab": vocab},
        "added_tokens": [{"content": token, "id": index} for token, index in (added or {}).items()],
    }
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def test_tokenizers_are_compared_by_vocabulary(tmp_path: Path) -> None:
    target = _tokenizer(tmp_path / "target", {"a": 0, "b": 1}, {"<eos>": 2})
    same = _tokenizer(tmp_path / "same", {"b": 1, "a": 0, "<eos>": 2})
    other = _tokenizer(tmp_path / "other", {"a": 1, "b": 0}, {"<eos>": 2})
    unigram = _tokenizer(tmp_path / "unigram", [["a", 0.0], ["b", -1.0]], {"<eos>": 2})
    (tmp_path / "none").mkdir()
    for fine in (same, unigram, tmp_path / "none"):
        check_pair(_target(), _assistant(), target_folder=target, assistant_folder=fine)
    with pytest.raises(PairError, match=r"differ in 2 tokens.*'a': id 1 in the assistant and 0 in the target"):
        check_pair(_target(), _assistant(), target_folder=target, assistant_folder=other)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    target, damaged = _tokenizer(tmp_path / "target", {"a": 0}), tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "tokenizer.json").write_text("[]")
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        check_pair(_target(), _assistant(), target_folder=target, assistant_folder=damaged)
