"""Prose paragraphs of the Python documentation (Debian's `python3.11-doc`, PSF licence).

Keeps running text: no tables, signatures, code blocks, notes of versions or lists of names. Knows nothing of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from frostline.train.documents import Document

CHAPTERS = ("tutorial", "howto", "faq", "library", "reference", "using", "installing", "whatsnew")
SKIPPED_TAGS = frozenset({"pre", "table", "dt", "script", "style", "nav", "h1", "h2", "h3", "h4", "h5", "sup"})
SKIPPED_CLASSES = (
    "versionadded",
    "versionchanged",
    "deprecated",
    "seealso",
    "availability",
    "footnote",
    "topic",
    "field-list",
)
VOID_TAGS = frozenset(
    {"br", "img", "hr", "input", "link", "meta", "col", "wbr", "source", "area", "base", "embed", "param"}
)
LEAST_CHARACTERS = 100
MOST_CHARACTERS = 1400


class _Paragraphs(HTMLParser):
    """Collects the text of each `<p>` inside the page body, outside skipped elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._open: list[tuple[str, bool]] = []
        self._text: list[str] | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID_TAGS:
            return
        given = dict(attrs)
        classes = given.get("class") or ""
        self._inside = self._inside or given.get("role") == "main"
        skip = tag in SKIPPED_TAGS or any(name in classes for name in SKIPPED_CLASSES) or "headerlink" in classes
        self._open.append((tag, skip))
        if tag == "p" and self._inside and not self._skipping():
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        while self._open and any(name == tag for name, _ in self._open):
            if self._open.pop()[0] == tag:
                break
        if tag == "p" and self._text is not None:
            self.found.append(" ".join("".join(self._text).split()))
            self._text = None

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self._skipping():
            self._text.append(data)

    def _skipping(self) -> bool:
        return any(skip for _, skip in self._open)


def paragraphs(html: str) -> list[str]:
    """The prose paragraphs of one page, each on one line, in plain quotes."""
    parser = _Paragraphs()
    parser.feed(html)
    plain = str.maketrans(
        {
            "\u2019": "'",
            "\u2018": "'",
            "\u201c": '"',
            "\u201d": '"',
            "\u2013": "-",
            "\u2014": "-",
            "\u2026": "...",
            "\xa0": " ",
        }
    )
    return [text for text in (found.translate(plain) for found in parser.found) if is_prose(text)]


def is_prose(text: str) -> bool:
    """Whether `text` reads as sentences: ends as one, mostly letters, few symbols and few code-like words."""
    if len(text) < LEAST_CHARACTERS or not text.isascii() or text[-1] not in ".!?" or not text[0].isupper():
        return False
    words = text.split()
    odd = sum(1 for word in words if re.search(r"[_(){}\[\]<>=/\\*|~^$%&+@#`]|\w\.\w", word))
    letters = sum(c.isalpha() or c in " ,.'" for c in text)
    return odd <= 0.08 * len(words) and letters >= 0.94 * len(text) and "<" not in text


def doc_documents(folder: Path) -> Iterator[Document]:
    """Plain documents of one to three paragraphs that follow each other on a page, from the HTML tree in `folder`.

    Raises FileNotFoundError when `folder` holds no chapter of the documentation.
    """
    pages = [page for chapter in CHAPTERS for page in sorted((folder / chapter).glob("**/*.html"))]
    if not pages:
        raise FileNotFoundError(f"no Python documentation under {folder}")
    seen: set[str] = set()
    for page in pages:
        group: list[str] = []
        for text in paragraphs(page.read_text(encoding="utf-8")):
            if text in seen:
                continue
            seen.add(text)
            if group and sum(map(len, group)) + len(text) > MOST_CHARACTERS:
                yield Document(kind="docs", text="\n\n".join(group))
                group = []
            if len(text) <= MOST_CHARACTERS:
                group.append(text)
        if group:
            yield Document(kind="docs", text="\n\n".join(group))
