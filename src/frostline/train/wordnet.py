"""WordNet 3.0 as training text: common words, and glosses as question and answer.

Reads the plain database files of Debian's `wordnet-base` (WordNet licence, Princeton University): `data.POS` holds the
glosses, `index.POS` the order of senses, `cntlist.rev` how often each sense was seen in tagged text. Knows nothing of
tokens or of files outside that folder.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frostline.train.documents import Document, Turn

PARTS = {"noun": "1", "verb": "2", "adj": "3", "adv": "4"}
CONCRETE_FIELDS = frozenset({"05", "06", "08", "13", "17", "20"})  # animals, things, body, food, nature, plants
UNSUITED_GLOSS = re.compile(  # usage notes and subjects that do not suit a demonstration
    r"offensive|obscene|vulgar|slang|slur|derogat|disparag|sexual|genital|copulat|prostitut|excre|feces|urin|narcotic"
    r"|alcohol|firearm|ammunition|explosive|weapon|genocid|murder|anatomy",
    re.IGNORECASE,
)
QUESTIONS = (
    "What does {w} mean?",
    "What is the meaning of {w}?",
    "Define {w}.",
    "What does the word {w} mean?",
    "Can you explain the word {w}?",
)
PART_NAMES = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One lemma with its first (most frequent) sense. `field` is WordNet's lexicographer file number."""

    lemma: str
    part: str
    field: str
    count: int
    gloss: str
    example: str
    synonyms: tuple[str, ...]


def _counts(folder: Path) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for line in (folder / "cntlist.rev").read_text().splitlines():
        key, _, count = line.split()
        lemma, sense = key.split("%")
        part = "3" if sense[0] == "5" else sense[0]  # 5 is the satellite adjective
        counts[lemma, part] += int(count)
    return counts


def _split_gloss(text: str) -> tuple[str, str]:
    """The definition and the first quoted example ("" if there is none)."""
    definition, _, rest = text.partition('; "')
    return definition.strip().rstrip(";"), rest.partition('"')[0].strip()


def read_entries(folder: Path) -> list[Entry]:
    """All single-word lower-case lemmas of the database in `folder`, most frequent first, ties by lemma.

    Raises FileNotFoundError when `folder` is no WordNet database.
    """
    counts = _counts(folder)
    entries = []
    for part, code in PARTS.items():
        synsets: dict[str, tuple[str, tuple[str, ...], str]] = {}
        for line in (folder / f"data.{part}").read_text().splitlines():
            if not line.startswith(" "):
                head, _, gloss = line.partition(" | ")
                fields = head.split()
                words = tuple(fields[4 + 2 * i] for i in range(int(fields[3], 16)))
                synsets[fields[0]] = (fields[1], words, gloss)
        for line in (folder / f"index.{part}").read_text().splitlines():
            fields = line.split()
            lemma = fields[0]
            if line.startswith(" ") or not (lemma.isalpha() and lemma.isascii()):
                continue
            field, words, gloss = synsets[fields[4 + int(fields[3]) + 2]]
            definition, example = _split_gloss(gloss)
            synonyms = tuple(w for w in words if w.isalpha() and w.islower() and w != lemma)
            if lemma in words and definition and not UNSUITED_GLOSS.search(gloss):  # not in words: a capitalised name
                entries.append(
                    Entry(
                        lemma=lemma,
                        part=part,
                        field=field,
                        count=counts[lemma, code],
                        gloss=definition,
                        example=example,
                        synonyms=synonyms,
                    )
                )
    return sorted(entries, key=lambda e: (-e.count, e.lemma, e.part))


def concrete_nouns(entries: list[Entry], *, least_count: int = 6) -> list[str]:
    """Short everyday nouns for things, animals, food and nature."""
    return [
        e.lemma
        for e in entries
        if e.part == "noun" and e.field in CONCRETE_FIELDS and e.count >= least_count and 3 <= len(e.lemma) <= 10
    ]


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def dictionary_documents(entries: list[Entry], *, seed: int = 0) -> Iterator[Document]:
    """One question and answer per entry, in the given order; the wording of the question varies with `seed`."""
    rng = random.Random(seed)
    for e in entries:
        if len(e.gloss) > 160 or e.gloss.startswith("(") or "`" in e.gloss:
            continue
        answer = f'"{e.lemma}" ({PART_NAMES[e.part]}): {_sentence(e.gloss)}'
        if e.lemma[:4] in e.example and len(e.example) < 100 and "`" not in e.example:
            answer += f" Example: {_sentence(e.example)}"
        question = rng.choice(QUESTIONS).format(w=f'"{e.lemma}"')
        yield Document(kind="dictionary", turns=(Turn("user", question), Turn("model", answer)))
        if e.synonyms and e.count >= 3:
            others = ", ".join(e.synonyms[:3])
            ask = rng.choice(("What is another word for {w}?", "Give me a synonym for {w}.")).format(w=f'"{e.lemma}"')
            noun = "Another word" if "," not in others else "Other words"
            reply = f'{noun} for "{e.lemma}": {others}.'
            yield Document(kind="dictionary", turns=(Turn("user", ask), Turn("model", reply)))
