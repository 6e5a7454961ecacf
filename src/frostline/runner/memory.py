"""How many pages each layer group gets. Knows sizes and free memory, not requests."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from frostline.cache.pool import GroupLayout
from frostline.config import EngineConfig
from frostline.errors import ConfigError
from frostline.model.spec import ModelSpec
from frostline.types import GROUPS, Group

# Part of the free memory that KV may take: the rest is for activations and for what else runs on the machine.
_SHARE = {"cuda": 0.8, "cpu": 0.25}


def plan_pages(
    spec: ModelSpec, *, table_width: int, margin: int, engine: EngineConfig, element_size: int, device: torch.device
) -> Mapping[Group, GroupLayout]:
    """Layout of both pools: enough pages for max_num_seqs full tables, or as many as free memory allows.

    In the sliding group a full table keeps the pages of its window and of what is written next, and no others.
    table_width: pages of the longest request. margin: rows that two iterations may write. Raises ConfigError when not
    even one such request fits.
    """
    written = spec.window + min(engine.max_prefill_tokens, table_width * engine.page_size) + margin
    each: Mapping[Group, int] = {"sliding": min(table_width, written // engine.page_size + 2), "full": table_width}
    number: dict[Group, int] = {group: engine.max_num_seqs * each[group] for group in GROUPS}
    if engine.kv_pages is not None:
        number = dict.fromkeys(GROUPS, engine.kv_pages)
    else:
        one = sum(each[group] * page_bytes(spec, group, engine.page_size, element_size) for group in GROUPS)
        fit = int(free_bytes(device) * _SHARE[device.type]) / max(one, 1)
        if fit < 1:
            raise ConfigError(
                f"KV of one request of the full context needs {one / 2**30:.2f} GiB, more than is free; set a smaller "
                "max_model_len"
            )
        number = {group: min(number[group], int(fit * each[group])) for group in GROUPS}
    if engine.sliding_kv_pages is not None:
        number["sliding"] = engine.sliding_kv_pages
    layouts: dict[Group, GroupLayout] = {}
    for group in GROUPS:
        owners = spec.owners(group)
        if owners:
            layer = spec.layers[owners[0]]
            layouts[group] = GroupLayout(
                owners=owners, kv_heads=layer.num_kv_heads, head_dim=layer.head_dim, num_pages=number[group] + 1
            )
    return layouts


def page_bytes(spec: ModelSpec, group: Group, page_size: int, element_size: int) -> int:
    """Bytes of one page over all layers of a group, keys and values."""
    layers = [spec.layers[index] for index in spec.owners(group)]
    return sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers) * page_size * element_size


def free_bytes(device: torch.device) -> int:
    """Free memory of the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
