"""Rows 5 and 23 of reported.md: the assistant has no KV of its own, and reads the target's through two page tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frostline import RequestOutput, SpeculativeConfig
from frostline.config import EngineConfig
from frostline.model.attention import FrozenContext
from frostline.model.names import assistant_slots, parameter_shapes
from frostline.model.spec import assistant_spec, read_config, target_spec
from frostline.runner.memory import page_bytes, plan_pages
from frostline.speculative.executor import DeviceExecutor
from frostline.types import GROUPS
from tests.equality.bundled import PLAIN, accept_length, bundle, differing
from tests.equality.recording import RecordingExecutor
from tests.model.test_spec import NAMES, folder
from tests.reported.test_equal_to_serial import GREEDY, prompts, serial

CHAIN = SpeculativeConfig(num_steps=4)


@pytest.mark.parametrize("name", NAMES)
def test_reported_5_released_assistants_reserve_no_kv(name: str) -> None:
    """E2B at default sizes reserved draft KV elsewhere: here every byte is of a layer of the target that owns rows."""
    target = target_spec(read_config(folder(name)))
    engine = EngineConfig(kv_pages=100)
    layouts = plan_pages(target, table_width=100, margin=10, engine=engine, element_size=2, device=torch.device("cpu"))
    for group in GROUPS:
        assert layouts[group].owners == target.owners(group)
        held = len(layouts[group].owners) * 2 * layouts[group].kv_heads * layouts[group].head_dim
        assert held * engine.page_size * 2 == page_bytes(target, group, engine.page_size, 2)
    drafter = assistant_spec(read_config(folder(name, assistant=True)))
    shapes = parameter_shapes(assistant_slots(drafter))
    for index, layer in enumerate(drafter.text.layers):
        rows = shapes[f"layers.{index}.self_attn.qkv_proj.weight"][0]
        assert not layer.owns_kv and rows == layer.num_heads * layer.head_dim, "queries alone"


def test_reported_5_a_device_side_holds_the_same_kv_with_an_assistant_and_without() -> None:
    drafting, plain = (bundle().executor(config, batch=4, context=256)[0] for config in (CHAIN, PLAIN))

    def shapes(device: DeviceExecutor) -> dict[str, Any]:
        return {group: (pool.layout.owners, pool.rows.shape[2:]) for group, pool in device._cache.pools.items()}

    assert shapes(drafting) == shapes(plain)
    # Wider steps need a longer page table per request, and nothing else.
    extra = 4 * -(-(256 + 2 * CHAIN.verify_width) // 16) - 4 * -(-(256 + 2 * PLAIN.verify_width) // 16)
    assert all(drafting.num_pages[group] - plain.num_pages[group] == extra for group in GROUPS)


def _generate(turned: bool) -> list[RequestOutput]:
    """turned: the two groups of a request never have the same page numbers."""
    llm = bundle().llm(CHAIN, wrap=RecordingExecutor if turned else None, batch=4, context=512)  # type: ignore[arg-type]
    return llm.generate(prompts(8), GREEDY)


def test_reported_23_draft_layers_read_their_own_groups_page_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere all draft layers used one group's table: the tokens were right and nothing was accepted."""
    same, turned = _generate(turned=False), _generate(turned=True)
    assert [output.stats for output in turned] == [output.stats for output in same]
    assert differing(turned, serial(8)) == [] and accept_length(turned) > 1.5
    init = FrozenContext.__init__

    def one_table(self: FrozenContext, *args: Any, tables: Any, **rest: Any) -> None:
        init(self, *args, tables={"sliding": tables["full"], "full": tables["full"]}, **rest)

    monkeypatch.setattr(FrozenContext, "__init__", one_table)
    broken = _generate(turned=True)
    assert differing(broken, serial(8)) == [] and accept_length(broken) < accept_length(turned) - 0.3
