"""How many pages each pool gets: what a window needs in the sliding group, whole tables in the full one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frostline.config import EngineConfig
from frostline.errors import ConfigError
from frostline.model.spec import read_config, target_spec
from frostline.runner import memory
from frostline.runner.memory import page_bytes, plan_pages
from frostline.types import GROUPS, Group

SPEC = target_spec(read_config(Path(__file__).parents[1] / "data" / "configs" / "gemma-4-E2B-it"))
CONTEXT, MARGIN = 32_768, 10
CPU = torch.device("cpu")


def pages(free: int, monkeypatch: pytest.MonkeyPatch, **options: int) -> dict[Group, int]:
    """Pages by group, the padding page not counted, with so many bytes free."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    engine = EngineConfig(**{"max_num_seqs": 8, "max_prefill_tokens": 1024, **options})
    layouts = plan_pages(
        SPEC, table_width=-(-(CONTEXT + MARGIN) // 16), margin=MARGIN, engine=engine, element_size=2, device=CPU
    )
    return {group: layouts[group].num_pages - 1 for group in GROUPS}


def test_the_sliding_pool_holds_windows_and_chunks_and_the_full_one_whole_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = pages(1 << 50, monkeypatch)
    assert found["full"] == 8 * 2049
    # A window of 512, a chunk of 1,024 and the drafts' rows, wherever the pages' borders fall.
    assert SPEC.window == 512 and found["sliding"] == 8 * ((512 + 1024 + 10) // 16 + 2)


def test_a_short_context_has_no_more_sliding_pages_than_it_has_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = plan_pages(
        SPEC, table_width=5, margin=MARGIN, engine=EngineConfig(max_num_seqs=3), element_size=2, device=CPU
    )
    assert {group: layouts[group].num_pages - 1 for group in GROUPS} == {"sliding": 15, "full": 15}


def test_both_pools_shrink_together_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = pages(1 << 50, monkeypatch)
    each = {group: page_bytes(SPEC, group, 16, 2) for group in GROUPS}
    wanted = sum(roomy[group] * each[group] for group in GROUPS)
    # A quarter of what is free is taken, so twice as much as is wanted makes half of the pages.
    found = pages(2 * wanted, monkeypatch)
    assert all(abs(found[group] - roomy[group] / 2) <= 1 for group in GROUPS)
    assert sum(found[group] * each[group] for group in GROUPS) <= wanted / 2
    with pytest.raises(ConfigError, match=r"KV of one request .* set a smaller max_model_len"):
        pages(4 * wanted // 9, monkeypatch)


def test_given_numbers_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages(0, monkeypatch, kv_pages=100) == {"sliding": 100, "full": 100}
    assert pages(0, monkeypatch, kv_pages=100, sliding_kv_pages=40) == {"sliding": 40, "full": 100}
    assert pages(1 << 50, monkeypatch, sliding_kv_pages=40) == {"sliding": 40, "full": 8 * 2049}
    with pytest.raises(ConfigError, match="sliding_kv_pages must be at least 2, got 1"):
        EngineConfig(sliding_kv_pages=1)
