"""Chats sampled from SmolLM2-135M-Instruct (Apache-2.0) by `tools/sample_smollm2.py`, cleaned.

Knows nothing of tokens.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from frostline.errors import ConfigError
from frostline.train.documents import Document, Turn

PLAIN = str.maketrans(
    {
        "\u2019": "'",
        "\u2018": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": " - ",
        "\u2026": "...",
        "\xa0": " ",
        "é": "e",
    }
)
UNSUITED = re.compile(r"language model|SmolLM|Hugging Face|\bAI\b|<\||http|\bI'm sorry, but|\ufffd", re.I)
LEAST_CHARACTERS, MOST_CHARACTERS = 16, 1000


def clean_reply(reply: str, *, ended: bool) -> str | None:
    """The reply in plain quotes, cut after its last whole sentence if it did not end itself; None if it is no use.

    Replies that loop (a run of five words seen three times), speak of being a model or leave ASCII are dropped.
    """
    text = re.sub(r"[ \t]+", " ", reply.translate(PLAIN)).strip()
    text = re.sub(r"\n{3,}", "\n\n", text)
    if not ended or len(text) > MOST_CHARACTERS:
        ends = [m.end() for m in re.finditer(r'[.!?]"?(?=\s|$)', text[:MOST_CHARACTERS])]
        text = text[: ends[-1]] if ends else ""
    words = text.lower().split()
    runs = Counter(zip(*(words[i:] for i in range(5)), strict=False))
    looping = bool(runs) and max(runs.values()) >= 3
    if looping or len(text) < LEAST_CHARACTERS or not text.isascii() or UNSUITED.search(text):
        return None
    return text


def sampled_documents(folder: Path) -> Iterator[Document]:
    """One chat per useful line of the `*.jsonl.gz` files in `folder`. Raises ConfigError when there is no such file."""
    files = sorted(folder.glob("**/*.jsonl.gz"))
    if not files:
        raise ConfigError(f"no sampled text (*.jsonl.gz) under {folder}: run tools/sample_smollm2.py, or leave it out")
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as source:
            for line in source:
                row = json.loads(line)
                reply = clean_reply(row["r"], ended=bool(row["e"]))
                if reply is not None:
                    yield Document(kind="chat", turns=(Turn("user", row["p"]), Turn("model", reply)))
