"""Depth by load: how a table is written, what it means, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from frostline.cli.dialects import SpeculationArgs, resolve_speculation
from frostline.config import DepthTable, SpeculativeConfig
from frostline.errors import ConfigError
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLLM

TEXT = "1:6,8:4,32:2,64:0"


def test_an_entry_holds_up_to_the_next() -> None:
    table = DepthTable.parse(TEXT)
    assert str(table) == TEXT and table.deepest == 6
    depths = {size: table.depth(size) for size in (1, 7, 8, 31, 32, 63, 64, 1000)}
    assert depths == {1: 6, 7: 6, 8: 4, 31: 4, 32: 2, 63: 2, 64: 0, 1000: 0}
    assert DepthTable.parse(" 1 : 2 , 4 : 3 ").depth(5) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not understood at ''; write requests:depth pairs"),
        ("1:6,8", "not understood at '8'"),
        ("1:6,8:-1", "not understood at '8:-1'"),
        ("1:six", "not understood at '1:six'"),
        ("2:6", "must begin with the depth for 1 request, got 2"),
        ("1:6,8:4,8:2", "more requests with each entry, got 8 after 8"),
        ("1:6,8:4,4:2", "more requests with each entry, got 4 after 8"),
        ("1:9", "the depth for 1 requests must be 0 \\(no drafting\\) to 8, got 9"),
    ],
)
def test_other_text_is_refused_with_the_rule(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DepthTable.parse(text)


def test_a_table_says_how_deep_to_load_where_nothing_else_does() -> None:
    table = DepthTable.parse(TEXT)
    assert SpeculativeConfig.derive(depth_table=table).num_steps == 6
    assert SpeculativeConfig.derive(depth_table=table, num_steps=8).verify_width == 9
    with pytest.raises(ConfigError, match=r"asks for depth 6 and num_steps is 4; set num_steps=6, or lower the table"):
        SpeculativeConfig(depth_table=table)
    assert SpeculativeConfig.derive(depth_table=table).without_drafts() == SpeculativeConfig(num_steps=0)


def test_on_the_command_line(run: Run, engines: list[FakeLLM]) -> None:
    result = run("generate", "--prompt", "x", "--depth-table", TEXT, "--topk", "2", "--json")
    assert result.exit_code == 0
    config = SpeculativeConfig.derive(topk=2, depth_table=DepthTable.parse(TEXT))
    assert engines[0].config == config and replace(config, depth_table=None).num_steps == 6
    assert json.loads(result.stdout)["speculative"]["depth_table"]["entries"] == [[1, 6], [8, 4], [32, 2], [64, 0]]
    refused = run("generate", "--prompt", "x", "--depth-table", "4:2")
    assert refused.exit_code == 2 and "must begin with the depth for 1 request" in refused.stderr


def test_a_table_asks_for_drafts() -> None:
    assert resolve_speculation(SpeculationArgs(depth_table="1:2")).explicit
    with pytest.raises(ConfigError, match="--draft none decodes without drafts and --depth-table 1:2 asks for them"):
        resolve_speculation(SpeculationArgs(draft="none", depth_table="1:2"))
