"""Figures of the released pairs against numbers worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frostline.config import SpeculativeConfig
from frostline.errors import ConfigError, ModelError
from frostline.model.figures import describe, distinct_experts
from tests.model.test_spec import NAMES, folder


def _described(name: str, draft: str | None = "auto", **options: Any) -> dict[str, Any]:
    return describe(str(folder(name)), draft, bandwidth=4300, **options)


def test_floor_of_e4b() -> None:
    floor = _described("E4B")["floor"]
    assert floor["target_ms"] == pytest.approx(2.16, abs=0.005)
    # The whole table as head: 0.04 ms; by centroids it is a gather of 4096 rows.
    assert floor["draft_step_dense_head_ms"] == pytest.approx(0.036, abs=0.0005)
    assert floor["draft_step_centroid_head_ms"] == pytest.approx(0.0058, abs=0.0001)
    assert floor["draft_step_no_head_ms"] < floor["draft_step_centroid_head_ms"]


def test_floor_of_31b() -> None:
    floor = _described("31B")["floor"]
    assert floor["target_ms"] == pytest.approx(14.3, abs=0.05)
    assert floor["draft_step_dense_head_ms"] == pytest.approx(0.22, abs=0.005)
    assert "draft_step_centroid_head_ms" not in floor


@pytest.mark.parametrize(
    ("name", "billions"), [("E2B", 4.63), ("E4B", 7.46), ("12B", 11.91), ("26B-A4B", 25.23), ("31B", 30.70)]
)
def test_parameters(name: str, billions: float) -> None:
    target = _described(name)["parameters"]["target"]
    assert target["total"]["count"] / 1e9 == pytest.approx(billions, abs=0.005)
    assert target["total"]["bytes"] == 2 * target["total"]["count"]
    assert target["embedding"]["count"] == 262144 * _described(name)["geometry"]["hidden_size"]
    assert target["head"]["count"] == 0
    assert sum(part["count"] for key, part in target.items() if key != "total") == target["total"]["count"]


def test_parts_that_only_some_kinds_have() -> None:
    e2b, moe = (_described(name)["parameters"]["target"] for name in ("E2B", "26B-A4B"))
    assert e2b["per_layer_embedding"]["count"] == 262144 * 35 * 256 and e2b["experts"]["count"] == 0
    assert moe["experts"]["count"] == 30 * 128 * 3 * 704 * 2816 and moe["per_layer_embedding"]["count"] == 0


def test_kv_counts_owners_only_and_stops_at_the_window() -> None:
    kv = _described("E4B", context=10_000)["kv"]
    assert kv["bytes_per_token"] == {"sliding": 20 * 2 * 2 * 256 * 2, "full": 4 * 2 * 2 * 512 * 2}
    assert kv["bytes"]["sliding"] == 512 * kv["bytes_per_token"]["sliding"]
    assert kv["bytes"]["full"] == 10_000 * kv["bytes_per_token"]["full"]
    assert kv["assistant_bytes"] == 0


def test_iteration_reads_the_target_once_and_the_assistant_once_per_step() -> None:
    reads = _described("E4B", speculative=SpeculativeConfig(num_steps=3))["iteration_bytes"]
    step = reads["draft_step"]["centroid_head"] + reads["kv_draft_step"]
    assert reads["total"] == reads["target"] + reads["kv_target"] + 3 * step
    assert reads["rows"] == 4
    # Three sliding layers over 512 rows and one full layer over 4096, two kv heads each.
    assert reads["kv_draft_step"] == 3 * 512 * 2 * 2 * 256 * 2 + 4096 * 2 * 2 * 512 * 2


def test_table_rows_are_gathered_not_read_whole() -> None:
    one, two = (_described("E2B", "none", batch=batch)["iteration_bytes"]["target"] for batch in (1, 2))
    assert two - one == (1536 + 35 * 256) * 2


def test_experts_touched() -> None:
    assert distinct_experts(128, 8, 1) == pytest.approx(8)
    assert distinct_experts(128, 8, 5) == pytest.approx(128 * (1 - (120 / 128) ** 5))
    assert distinct_experts(128, 8, 10_000) == pytest.approx(128)
    few, many = (_described("26B-A4B", "none", batch=batch)["iteration_bytes"]["target"] for batch in (1, 64))
    per_expert = 30 * 3 * 704 * 2816 * 2
    expected = (distinct_experts(128, 8, 64) - 8) * per_expert + 63 * 2816 * 2
    assert many - few == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("name", NAMES)
def test_pair_and_json(name: str) -> None:
    result = _described(name)
    assert result["pair"] == {"fits": True, "reason": None}
    assert json.loads(json.dumps(result)) == result


def test_a_wrong_pair_is_described() -> None:
    result = _described("E2B", str(folder("E4B", assistant=True)))
    assert result["pair"]["fits"] is False and "backbone width" in result["pair"]["reason"]


def test_without_a_draft() -> None:
    result = _described("E2B", None)
    assert result["draft"] is None and result["pair"] is None and result["iteration_bytes"]["num_steps"] == 0
    assert "assistant" not in result["parameters"]


def test_dtype_sets_the_width() -> None:
    wide, narrow = (_described("E2B", dtype=dtype)["parameters"]["target"] for dtype in ("float32", "auto"))
    assert wide["total"]["bytes"] == 2 * narrow["total"]["bytes"]


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="bandwidth"):
        describe(str(folder("E2B")), None, bandwidth=0)
    with pytest.raises(ConfigError, match="dtype"):
        _described("E2B", dtype="int4")
    with pytest.raises(ModelError, match="not an assistant"):
        _described("E2B", str(folder("E2B")))
