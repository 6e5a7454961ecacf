"""Loading: the released layout in every form it comes in, and a named refusal of whatever does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from frostline.errors import ModelError
from frostline.model.attention import CausalContext
from frostline.model.decoder import Decoder
from frostline.model.export import save_assistant, save_target
from frostline.model.loader import load_assistant, load_target
from frostline.model.spec import read_config, target_spec
from tests.model import released
from tests.model.released import PREFIX, WEIGHTS
from tests.model.tiny import KINDS, VOCAB, save_pair


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def e2b(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The kind with most tensors: per-layer embeddings, shared layers, a centroid head."""
    return save_pair("e2b", tmp_path_factory.mktemp("e2b"))


def _target(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_target(folder, dtype=dtype, device="cpu")


def _same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _refused(folder: Path, *words: str, dtype: torch.dtype = torch.float32) -> None:
    with pytest.raises(ModelError) as caught:
        _target(folder, dtype)
    _one_line(caught.value, words)


def _one_line(error: Exception, words: tuple[str, ...]) -> None:
    assert "\n" not in str(error)
    for word in words:
        assert word in str(error)


def test_released_layout_equals_the_one_that_transformers_writes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    config, tensors = released.read(pair[0])
    flat = released.flat_config(config)
    assert "per_layer_config" in config["text_config"] and "per_layer_config" not in flat["text_config"]
    released.write(tmp_path, flat, released.with_leftovers(flat, tensors))
    assert target_spec(flat) == target_spec(config)
    assert _same(_target(tmp_path), _target(pair[0]))


def test_text_only_prefix(pair: tuple[Path, Path], tmp_path: Path) -> None:
    config, tensors = released.read(pair[0])
    text = config["text_config"] | {"dtype": "float32"}
    released.write(tmp_path, text, {name.replace(PREFIX, "model."): tensor for name, tensor in tensors.items()})
    assert _same(_target(tmp_path), _target(pair[0]))


def test_sharded_equals_single(pair: tuple[Path, Path], tmp_path: Path) -> None:
    released.write_sharded(tmp_path, *released.read(pair[0]), shards=3)
    assert _same(_target(tmp_path), _target(pair[0]))


def test_save_and_load_round_trip(pair: tuple[Path, Path], tmp_path: Path) -> None:
    decoder = _target(pair[0])
    config, tensors = released.read(pair[0])
    save_target(decoder, config, tmp_path / "tiny")
    written_config, written = released.read(tmp_path / "tiny")
    assert written_config == config
    assert written.keys() == tensors.keys() and all(torch.equal(written[name], tensors[name]) for name in written)

    assistant = load_assistant(pair[1], decoder.spec, dtype=torch.float32, device="cpu")
    save_assistant(assistant, read_config(pair[1]), tmp_path / "tiny-assistant")
    _, tensors = released.read(pair[1])
    _, written = released.read(tmp_path / "tiny-assistant")
    assert written.keys() == tensors.keys() and all(torch.equal(written[name], tensors[name]) for name in written)


def test_save_in_shards_over_an_earlier_save(e2b: tuple[Path, Path], tmp_path: Path) -> None:
    decoder, config = _target(e2b[0]), read_config(e2b[0])
    save_target(decoder, config, tmp_path)
    save_target(decoder, config, tmp_path, shard_bytes=200_000, dtype=torch.float64)
    assert not (tmp_path / WEIGHTS).exists() and len(list(tmp_path.glob("model-*.safetensors"))) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 8 * sum(p.numel() for p in decoder.parameters())
    assert _same(_target(tmp_path), decoder)


def test_save_refuses_the_config_of_another_model(e2b: tuple[Path, Path], tmp_path: Path) -> None:
    config = read_config(e2b[0])
    config["text_config"]["sliding_window"] += 1
    with pytest.raises(ModelError, match="does not describe"):
        save_target(_target(e2b[0]), config, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype_of_weights_and_of_the_forward(e2b: tuple[Path, Path], dtype: torch.dtype) -> None:
    decoder = _target(e2b[0], dtype)
    assert {p.dtype for p in decoder.parameters()} == {dtype}
    hidden = decoder(torch.tensor([[5, 6]]), CausalContext(decoder.spec, decoder.rotary, torch.arange(2)))
    assert hidden.dtype == dtype


Edit = Callable[[dict[str, Tensor]], dict[str, Tensor]]
NORM = PREFIX + "layers.3.input_layernorm.weight"
UP = PREFIX + "layers.1.mlp.up_proj.weight"
V = PREFIX + "layers.0.self_attn.v_proj.weight"


def _put(name: str, tensor: Tensor | None) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {n: t for n, t in tensors.items() if n != name}
        return kept if tensor is None else kept | {name: tensor}

    return edit


FAULTS: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "missing": (_put(UP, None), ("lacks", UP)),
    "missing part of a fused parameter": (_put(V, None), ("lacks", V)),
    "missing norm": (_put(NORM, None), ("lacks", NORM)),
    "surplus": (_put(PREFIX + "layers.1.mlp.gate_proj.bias", torch.ones(2)), ("no place for", "gate_proj.bias")),
    "surplus layer": (_put(PREFIX + "layers.99.layer_scalar", torch.ones(1)), ("no place for", "layers.99")),
    "surplus keys of no layer": (
        _put(PREFIX + "layers.99.self_attn.k_proj.weight", torch.ones(1, 1)),
        ("no place for", "layers.99"),
    ),
    "both prefixes": (_put("model.norm.weight", torch.ones(48)), ("no place for", "model.norm.weight")),
    "misshapen": (_put(UP, torch.ones(71, 48)), (UP, "[71, 48]", "[72, 48]")),
    "transposed": (_put(UP, torch.ones(48, 72)), (UP, "[48, 72]", "[72, 48]")),
    "packed int4": (_put(UP, torch.ones(72, 24, dtype=torch.uint8)), (UP, "U8", "quantized")),
    "packed int32": (_put(UP, torch.ones(72, 6, dtype=torch.int32)), (UP, "I32", "quantized")),
    "float8": (_put(UP, torch.ones(72, 48).to(torch.float8_e4m3fn)), (UP, "F8_E4M3", "quantized")),
    "gptq names": (
        lambda t: _put(UP, None)(t) | {UP.replace("weight", "qweight"): torch.ones(6, 72, dtype=torch.int32)},
        ("qweight", "I32", "quantized"),
    ),
    "nan": (_put(NORM, torch.tensor([float("nan")] + [1.0] * 47)), (NORM, "NaN", "again")),
    "infinity": (_put(UP, torch.full((72, 48), float("-inf"))), (UP, "NaN or infinity", "again")),
    "untied head": (_put("lm_head.weight", torch.ones(VOCAB, 48)), ("lm_head.weight", "tied")),
    "another model": (lambda t: {"transformer.wte.weight": torch.ones(2, 2)}, ("no text decoder", "Gemma 4")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_by_name(e2b: tuple[Path, Path], tmp_path: Path, fault: str) -> None:
    config, tensors = released.read(e2b[0])
    edit, words = FAULTS[fault]
    released.write(tmp_path, config, edit(tensors))
    _refused(tmp_path, *words)


def test_many_missing_tensors_are_counted(e2b: tuple[Path, Path], tmp_path: Path) -> None:
    config, tensors = released.read(e2b[0])
    released.write(tmp_path, config, {n: t for n, t in tensors.items() if "input_layernorm" not in n})
    _refused(tmp_path, "layers.0.input_layernorm.weight", "and 5 more")


def test_weights_beyond_float16_say_so(e2b: tuple[Path, Path], tmp_path: Path) -> None:
    config, tensors = released.read(e2b[0])
    released.write(tmp_path, config, tensors | {NORM: torch.full((48,), 1e6)})
    _refused(tmp_path, NORM, "float16", "bfloat16", dtype=torch.float16)
    _target(tmp_path, torch.bfloat16)


def test_no_weights(e2b: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(read_config(e2b[0])))
    _refused(tmp_path, "no weights", "--dummy-weights")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    _refused(tmp_path, "model.gguf", "safetensors")


def test_no_config(tmp_path: Path) -> None:
    _refused(tmp_path, "config.json not found")


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\xff" * 64])
def test_damaged_file(e2b: tuple[Path, Path], tmp_path: Path, content: bytes) -> None:
    released.write(tmp_path, *released.read(e2b[0]))
    (tmp_path / WEIGHTS).write_bytes(content)
    _refused(tmp_path, WEIGHTS, "download it again")


def test_truncated_file(e2b: tuple[Path, Path], tmp_path: Path) -> None:
    released.write(tmp_path, *released.read(e2b[0]))
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    _refused(tmp_path, WEIGHTS, "download it again")


class TestShards:
    @pytest.fixture
    def folder(self, e2b: tuple[Path, Path], tmp_path: Path) -> Path:
        return released.write_sharded(tmp_path, *released.read(e2b[0]), shards=3)

    def _index(self, folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
        path = folder / "model.safetensors.index.json"
        weight_map = json.loads(path.read_text())["weight_map"]
        change(weight_map)
        path.write_text(json.dumps({"weight_map": weight_map}))

    def test_missing_shard(self, folder: Path) -> None:
        (folder / released.shard_name(1, 3)).unlink()
        _refused(folder, released.shard_name(1, 3), "download it again")

    def test_duplicate_tensor(self, folder: Path) -> None:
        self._index(folder, lambda weight_map: weight_map.update({"x": "more.safetensors"}))
        save_file({"x": torch.ones(1), NORM: torch.ones(48)}, folder / "more.safetensors")
        _refused(folder, NORM, "more.safetensors", "both")

    def test_tensor_that_its_shard_lacks(self, folder: Path) -> None:
        self._index(folder, lambda weight_map: weight_map.update({UP + "x": released.shard_name(0, 3)}))
        _refused(folder, UP + "x", released.shard_name(0, 3))

    def test_index_beside_a_single_file(self, folder: Path) -> None:
        save_file({"x": torch.ones(1)}, folder / WEIGHTS)
        _refused(folder, "both", WEIGHTS)

    @pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[]"])
    def test_damaged_index(self, folder: Path, content: str) -> None:
        (folder / "model.safetensors.index.json").write_text(content)
        _refused(folder, "weight_map")


class TestAssistant:
    ORDERING = "masked_embedding.token_ordering"

    def _edited(self, e2b: tuple[Path, Path], folder: Path, edit: Edit) -> Path:
        config, tensors = released.read(e2b[1])
        return released.write(folder, config, edit(tensors))

    def _refused(self, e2b: tuple[Path, Path], folder: Path, *words: str) -> None:
        target = target_spec(read_config(e2b[0]))
        with pytest.raises(ModelError) as caught:
            load_assistant(folder, target, dtype=torch.float32, device="cpu")
        _one_line(caught.value, words)

    def test_reported_25_pre_projection_takes_twice_the_backbone(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        target = target_spec(read_config(e2b[0]))
        assistant = load_assistant(e2b[1], target, dtype=torch.float32, device="cpu")
        assert tuple(assistant.pre_projection.weight.shape) == (24, 2 * target.hidden_size)
        narrow = self._edited(e2b, tmp_path, _put("pre_projection.weight", torch.ones(24, 48)))
        self._refused(e2b, narrow, "pre_projection.weight", "[24, 48]", "[24, 96]")

    def test_reported_26_sizes_come_from_its_own_text_config(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        config, tensors = released.read(e2b[1])
        # The same keys one level up, as some archives carry them, are another model's.
        released.write(tmp_path, config | {"intermediate_size": 9999, "hidden_size": 48}, tensors)
        target = target_spec(read_config(e2b[0]))
        assistant = load_assistant(tmp_path, target, dtype=torch.float32, device="cpu")
        assert [layer.intermediate for layer in assistant.spec.text.layers] == [40] * 4

    def test_reported_45_quantized_drafter_is_refused(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        def quantize(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            name = "model.layers.0.mlp.down_proj"
            return tensors | {
                f"{name}.weight": torch.ones(24, 5, dtype=torch.uint32),
                f"{name}.scales": torch.ones(24, 1),
                f"{name}.biases": torch.ones(24, 1),
            }

        self._refused(e2b, self._edited(e2b, tmp_path, quantize), "down_proj.weight", "U32", "quantized")
        config, tensors = released.read(e2b[1])
        released.write(tmp_path, config | {"quantization_config": {"quant_method": "awq"}}, tensors)
        self._refused(e2b, tmp_path, "quantized (awq)")

    def test_token_ordering_of_zeros(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        zeros = _put(self.ORDERING, torch.zeros(VOCAB, dtype=torch.int64))
        self._refused(e2b, self._edited(e2b, tmp_path, zeros), self.ORDERING, "once")

    def test_token_ordering_out_of_range(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        shifted = _put(self.ORDERING, torch.arange(VOCAB) + 1)
        self._refused(e2b, self._edited(e2b, tmp_path, shifted), self.ORDERING, "0 to 255")

    def test_token_ordering_as_floats(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        floats = _put(self.ORDERING, torch.arange(VOCAB).float())
        self._refused(e2b, self._edited(e2b, tmp_path, floats), self.ORDERING, "F32", "token ids")

    def test_token_ordering_as_int32(self, e2b: tuple[Path, Path], tmp_path: Path) -> None:
        folder = self._edited(e2b, tmp_path, _put(self.ORDERING, torch.arange(VOCAB, dtype=torch.int32)))
        target = target_spec(read_config(e2b[0]))
        assistant = load_assistant(folder, target, dtype=torch.float32, device="cpu")
        assert assistant.masked_embedding.token_ordering.dtype == torch.int64

    def test_a_target_given_as_assistant_and_the_reverse(self, e2b: tuple[Path, Path]) -> None:
        self._refused(e2b, e2b[0], "not an assistant")
        _refused(e2b[1], "is an assistant", "--draft")
