"""Prompts in every form in which users give them. Knows their forms; nothing of tokenizers or requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frostline.errors import RequestError

Prompt = str | Sequence[int]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. Raises RequestError for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(_is_id(item) for item in items):
        return [items]
    for item in items:
        if not isinstance(item, str) and not (isinstance(item, Sequence) and all(_is_id(i) for i in item)):
            raise RequestError("prompts must be a text, a list of token ids, or a list of such prompts")
    return items


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
