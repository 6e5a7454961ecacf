"""Specs of the ten released configs, against the facts of gemma4.md section 6, and against what transformers reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from frostline.errors import ModelError
from frostline.model.names import assistant_slots, target_slots
from frostline.model.spec import assistant_spec, read_config, target_spec

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
NAMES = ("E2B", "E4B", "12B", "26B-A4B", "31B")


def folder(name: str, *, assistant: bool = False) -> Path:
    return CONFIGS / f"gemma-4-{name}-it{'-assistant' if assistant else ''}"


# hidden, layers, full layers, heads, kv heads sliding/full, first shared layer, window, per-layer width, last owners
TARGETS = {
    "E2B": (1536, 35, 7, 8, (1, 1), 15, 512, 256, (13, 14)),
    "E4B": (2560, 42, 7, 8, (2, 2), 24, 512, 256, (22, 23)),
    "12B": (3840, 48, 8, 16, (8, 1), 48, 1024, 0, (46, 47)),
    "26B-A4B": (2816, 30, 5, 16, (8, 2), 30, 1024, 0, (28, 29)),
    "31B": (5376, 60, 10, 32, (16, 4), 60, 1024, 0, (58, 59)),
}
# width, intermediate, heads, kv heads sliding/full, centroids
ASSISTANTS = {
    "E2B": (256, 2048, 4, (1, 1), 2048),
    "E4B": (256, 2048, 4, (2, 2), 2048),
    "12B": (1024, 8192, 16, (8, 1), 0),
    "26B-A4B": (1024, 8192, 16, (8, 2), 0),
    "31B": (1024, 8192, 32, (16, 4), 0),
}


@pytest.mark.parametrize("name", NAMES)
def test_target(name: str) -> None:
    spec = target_spec(read_config(folder(name)))
    hidden, layers, full, heads, kv_heads, first_shared, window, ple, owners = TARGETS[name]
    assert (spec.hidden_size, len(spec.layers), spec.first_shared) == (hidden, layers, first_shared)
    assert (spec.window, spec.ple_dim, spec.ple_vocab) == (window, ple, 262144 if ple else 0)
    assert sum(layer.kind == "full" for layer in spec.layers) == full
    assert (spec.last_owner("sliding"), spec.last_owner("full")) == owners
    for layer in spec.layers:
        sliding = layer.kind == "sliding"
        assert (layer.num_heads, layer.num_kv_heads) == (heads, kv_heads[0 if sliding else 1])
        assert (layer.head_dim, layer.window) == ((256, window) if sliding else (512, None))
        assert layer.k_eq_v == (not sliding and name not in ("E2B", "E4B"))
        assert layer.kv_owner == (layer.index if layer.index < first_shared else owners[0 if sliding else 1])
    assert (spec.vocab_size, spec.softcap, spec.eps, spec.dtype) == (262144, 30.0, 1e-6, "bfloat16")
    assert (spec.ropes["sliding"].theta, spec.ropes["sliding"].rotated) == (1e4, 128)
    assert (spec.ropes["full"].theta, spec.ropes["full"].rotated) == (1e6, 64)


@pytest.mark.parametrize("name", NAMES)
def test_assistant(name: str) -> None:
    spec = assistant_spec(read_config(folder(name, assistant=True)))
    width, intermediate, heads, kv_heads, centroids = ASSISTANTS[name]
    assert (spec.text.hidden_size, spec.backbone_size, spec.num_centroids) == (width, TARGETS[name][0], centroids)
    assert [layer.kind for layer in spec.text.layers] == ["sliding", "sliding", "sliding", "full"]
    for layer in spec.text.layers:
        assert (layer.num_heads, layer.intermediate, layer.kv_owner) == (heads, intermediate, -1)
        assert layer.num_kv_heads == kv_heads[0 if layer.kind == "sliding" else 1]
    assert (spec.text.softcap, spec.text.ple_dim, spec.text.moe, spec.draft_position) == (None, 0, None, None)
    assert len(assistant_slots(spec)) == (50 if centroids else 48)


def test_differences_that_only_one_kind_has() -> None:
    e2b = target_spec(read_config(folder("E2B")))
    assert [layer.intermediate for layer in e2b.layers] == [6144] * 15 + [12288] * 20
    moe = target_spec(read_config(folder("26B-A4B"))).moe
    assert moe is not None and (moe.num_experts, moe.top_k, moe.intermediate) == (128, 8, 704)
    assert all(target_spec(read_config(folder(name))).moe is None for name in NAMES if name != "26B-A4B")


@pytest.mark.parametrize("assistant", [False, True], ids=["target", "assistant"])
@pytest.mark.parametrize("name", NAMES)
def test_per_layer_config_gives_the_same_spec(name: str, assistant: bool) -> None:
    flat = read_config(folder(name, assistant=assistant))
    rewritten = json.loads(AutoConfig.from_pretrained(folder(name, assistant=assistant)).to_json_string())
    assert "per_layer_config" in rewritten["text_config"] and "global_head_dim" not in rewritten["text_config"]
    read = assistant_spec if assistant else target_spec
    assert read(rewritten) == read(flat)


def test_names_of_the_released_layout() -> None:
    slots = target_slots(target_spec(read_config(folder("E4B"))), "model.language_model.")
    base = "model.language_model.layers"
    assert slots[f"{base}.0.self_attn.v_proj.weight"].start == 8 * 256 + 2 * 256
    assert slots[f"{base}.23.self_attn.k_proj.weight"].shape == (2 * 512, 2560)
    assert f"{base}.24.self_attn.k_proj.weight" not in slots
    assert slots["model.language_model.embed_tokens_per_layer.weight"].shape == (262144, 42 * 256)
    slots = target_slots(target_spec(read_config(folder("31B"))), "model.language_model.")
    assert f"{base}.5.self_attn.v_proj.weight" not in slots and f"{base}.4.self_attn.v_proj.weight" in slots


def _e2b(**changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(read_config(folder("E2B")))
    config["text_config"] |= changes
    return config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_activation": "silu"}, "silu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_bidirectional_attention": "all"}, "embedding model"),
        ({"layer_types": ["sliding_attention"]}, "layer_types has 1"),
        ({"layer_types": ["linear_attention"] * 35}, "linear_attention"),
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers 35"),
        ({"num_kv_shared_layers": 33}, "shares keys and values"),
        ({"num_key_value_heads": 3}, "8 query heads"),
        ({"hidden_size": None}, "'hidden_size'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "yarn"),
    ],
)
def test_what_cannot_be_honoured_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        target_spec(_e2b(**changes))
    assert "\n" not in str(caught.value)


def test_reported_27_kinds_are_recognised_by_model_type() -> None:
    for name in NAMES:
        with pytest.raises(ModelError, match="is an assistant"):
            target_spec(read_config(folder(name, assistant=True)))
        with pytest.raises(ModelError, match="not an assistant"):
            assistant_spec(read_config(folder(name)))
    with pytest.raises(ModelError, match="'llama' is not supported"):
        target_spec({"model_type": "llama"})


def test_last_layer_is_full_whatever_the_config_says() -> None:
    kinds = ["sliding_attention", "full_attention"] * 7 + ["sliding_attention"] * 21
    assert target_spec(_e2b(layer_types=kinds)).layers[-1].kind == "full"


@pytest.mark.parametrize("extra", [{"hidden_size_per_layer_input": 256}, {"enable_moe_block": True}])
def test_an_assistant_with_parts_that_it_cannot_have_is_refused(extra: dict[str, Any]) -> None:
    config = read_config(folder("E2B", assistant=True))
    config["text_config"] |= extra | {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16}
    with pytest.raises(ModelError, match="per-layer embeddings or experts"):
        assistant_spec(config)
