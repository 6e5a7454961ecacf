"""What a training document is, and how it is written as text with Gemma 4's turn tokens.

`render` is the plain-Python twin of the chat template (a test holds them equal); plain text documents have no turns.
Knows nothing of token ids or files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "model", "raw"]
BOS, EOS, TURN_OPEN, TURN_CLOSE = "<bos>", "<eos>", "<|turn>", "<turn|>"


@dataclass(frozen=True)
class Turn:
    """One turn. Role "raw" is text written as it stands, markers included (a tool response, say)."""

    role: Role
    text: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """A chat (`turns`) or plain prose (`text`); exactly one of them is set."""

    kind: str
    turns: tuple[Turn, ...] = ()
    text: str = ""

    def render(self) -> str:
        """The whole document, from `<bos>` to `<eos>`."""
        if not self.turns:
            return f"{BOS}{self.text}{EOS}"
        return BOS + "".join(_render_turn(t) for t in self.turns) + EOS

    def prompt(self) -> str:
        """Everything before the last model turn, then the generation prompt. For prose, the text without an end."""
        if not self.turns:
            return BOS + self.text
        last = max(i for i, t in enumerate(self.turns) if t.role == "model")
        return BOS + "".join(_render_turn(t) for t in self.turns[:last]) + f"{TURN_OPEN}model\n"

    def group(self) -> str:
        """What decides the split: documents that ask the same thing are held out together."""
        return next((t.text for t in self.turns if t.role == "user"), self.text)


def _render_turn(turn: Turn) -> str:
    if turn.role == "raw":
        return turn.text
    return f"{TURN_OPEN}{turn.role}\n{turn.text}{TURN_CLOSE}\n"


def is_held_out(document: Document, share: float) -> bool:
    """A deterministic split by content, whatever the kind: SHA-256 of the opening question, below `share` of all."""
    digest = hashlib.sha256(document.group().encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
