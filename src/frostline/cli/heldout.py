"""Prompts that the bundled pair was not trained on, one kind of text each. They lie beside its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass

from frostline.bundled import bundled_path
from frostline.errors import ModelError

FILE = "held_out.jsonl"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """kind: what sort of text. prompt: rendered, with the marks of the chat template in it."""

    kind: str
    prompt: str


def held_out(per_kind: int = 1) -> list[HeldOut]:
    """The first `per_kind` prompts of each kind, in the order of the file. Raises ModelError when it is missing."""
    path = bundled_path("tiny") / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; install frostline again or give prompts of your own") from None
    chosen: list[HeldOut] = []
    counts: dict[str, int] = {}
    for line in lines:
        record = json.loads(line)
        kind = str(record["kind"])
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= per_kind:
            chosen.append(HeldOut(kind=kind, prompt=str(record["prompt"])))
    return chosen
