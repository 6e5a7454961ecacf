"""Prompts that the bundled pair was not trained on, one kind of text each. They lie beside its weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import zip_longest

from frostline.bundled import bundled_path
from frostline.errors import ModelError

FILE = "held_out.jsonl"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """kind: what sort of text. prompt: rendered, with the marks of the chat template in it."""

    kind: str
    prompt: str

    @property
    def shown(self) -> str:
        """The prompt for people: roles in words, the other marks left out."""
        text = re.sub(r"<\|turn>(\w+)\n", r"\1: ", self.prompt.removesuffix("<|turn>model\n"))
        return re.sub(r"<bos>|<turn\|>|<\|think\|>", "", text).strip()


def held_out(count: int | None = None) -> list[HeldOut]:
    """`count` prompts, the first of every kind, then the second of every kind, and so on; None: one of each kind.

    Raises ModelError when the file is missing.
    """
    path = bundled_path("tiny") / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; install frostline again or give prompts of your own") from None
    kinds: dict[str, list[HeldOut]] = {}
    for line in lines:
        record = json.loads(line)
        item = HeldOut(kind=str(record["kind"]), prompt=str(record["prompt"]))
        kinds.setdefault(item.kind, []).append(item)
    rounds = zip_longest(*kinds.values())
    in_turn = [item for turn in rounds for item in turn if item is not None]
    return in_turn[: len(kinds) if count is None else count]
