"""Builds the training corpus: documents of every kind, split, tokenised and written as uint16 streams.

Layout of the output folder, per kind and split (`train`, `heldout`): `KIND-SPLIT.npy`, uint16, all tokens one after
another, and `KIND-SPLIT.offsets.npy`, uint32 [documents + 1], where each document begins and the last one ends.
`index.json` counts them and names the sources. Every document begins with `<bos>`, ends with `<eos>` and has at most
512 tokens.
The split is by content (documents.is_held_out), so it does not change when a source grows.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from frostline.train.documents import BOS, Document, Turn, is_held_out
from frostline.train.gsm8k import gsm8k_documents
from frostline.train.prompts import generate_prompts
from frostline.train.pydocs import doc_documents
from frostline.train.reasoning import reasoning_documents
from frostline.train.sampled import sampled_documents
from frostline.train.sources import SOURCES, python_docs, wordnet
from frostline.train.synthetic import thinking_documents, tool_documents
from frostline.train.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from frostline.train.wordnet import concrete_nouns, dictionary_documents, read_entries

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KINDS = ("gsm8k", "reasoning", "docs", "dictionary", "chat", "tools")
HELD_OUT_SHARE = 0.03
MOST_TOKENS = 512
PROMPT_DOC_TOKENS = 48
PROMPTS_PER_KIND = 60
DICTIONARY_ENTRIES = 20_000
REASONING_DOCUMENTS = 42_000
TOOL_DOCUMENTS = 8_000
THINKING_DOCUMENTS = 6_000
CHAT_REPEATS = 4
# Characters of each kind that the tokenizer sees: conversational English counts most, as in training.
TOKENIZER_CHARACTERS = {
    "chat": 3_000_000,
    "gsm8k": 1_200_000,
    "docs": 1_400_000,
    "dictionary": 900_000,
    "reasoning": 600_000,
    "tools": 200_000,
}


def collect_documents(gsm8k: Path, sampled: Path | None, cache: Path) -> dict[str, list[Document]]:
    """The documents of every kind; "chat" is empty without `sampled`. Deterministic for the same sources."""
    entries = read_entries(wordnet(cache))[:DICTIONARY_ENTRIES]
    problems = list(gsm8k_documents(gsm8k))
    puzzles = list(reasoning_documents(REASONING_DOCUMENTS))
    thoughts = list(thinking_documents(itertools.chain(puzzles, problems)))
    random.Random(0).shuffle(thoughts)
    return {
        "gsm8k": problems,
        "reasoning": puzzles,
        "docs": list(doc_documents(python_docs(cache))),
        "dictionary": list(dictionary_documents(entries)),
        "chat": list(sampled_documents(sampled)) if sampled else [],
        "tools": [*tool_documents(TOOL_DOCUMENTS), *thoughts[:THINKING_DOCUMENTS]],
    }


def tokenizer_texts(documents: dict[str, list[Document]]) -> Iterator[str]:
    """Turn texts of training documents, each kind up to its share. Chats repeat, so that a small sample counts too."""
    for kind, characters in TOKENIZER_CHARACTERS.items():
        chosen = [d for d in documents.get(kind, []) if not is_held_out(d, HELD_OUT_SHARE)]
        random.Random(0).shuffle(chosen)
        for document in chosen * (CHAT_REPEATS if kind == "chat" else 1):
            texts = [turn.text for turn in document.turns] or [document.text]
            characters -= sum(map(len, texts))
            if characters < 0:
                break
            yield from texts


def write_kind(out: Path, kind: str, documents: Iterable[Document], tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """Tokenise and write one kind, duplicates and documents over 512 tokens left out.

    Returns documents and tokens per split.
    """
    import numpy as np

    unique = {document.render(): document for document in documents}
    counts = {}
    for split in ("train", "heldout"):
        texts = [text for text, d in unique.items() if is_held_out(d, HELD_OUT_SHARE) == (split == "heldout")]
        rows = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False) if len(e.ids) <= MOST_TOKENS]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.uint32)
        tokens = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.uint16, count=int(offsets[-1]))
        np.save(out / f"{kind}-{split}.npy", tokens)
        np.save(out / f"{kind}-{split}.offsets.npy", offsets)
        counts[split] = {"documents": len(rows), "tokens": len(tokens)}
    return counts


def held_out_prompts(
    documents: dict[str, list[Document]], chat: list[str], tokenizer: Tokenizer
) -> dict[str, list[str]]:
    """About 60 prompts per kind, as text that begins with `<bos>`, none of which is in any training split.

    chat: prompts (bare questions) to choose the held-out ones from, since replies are not needed for evaluation.
    """
    asked = [Document(kind="chat", turns=(Turn("user", text), Turn("model", ""))) for text in chat]
    prompts = {}
    for kind in KINDS:
        held = [d for d in (asked if kind == "chat" else documents[kind]) if is_held_out(d, HELD_OUT_SHARE)]
        random.Random(1).shuffle(held)
        texts = [d.prompt() if d.turns else _opening(d, tokenizer) for d in held]
        fitting = (t for t in dict.fromkeys(texts) if len(tokenizer.encode(t, add_special_tokens=False).ids) <= 256)
        prompts[kind] = list(itertools.islice(fitting, PROMPTS_PER_KIND))
    return prompts


def _opening(document: Document, tokenizer: Tokenizer) -> str:
    ids = tokenizer.encode(document.text, add_special_tokens=False).ids[:PROMPT_DOC_TOKENS]
    return BOS + str(tokenizer.decode(ids))


def add_chats(out: Path, sampled: Path, tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """Write only the "chat" kind, from text sampled later (on a GPU machine, say), and bring index.json up to date."""
    counts = write_kind(out, "chat", sampled_documents(sampled), tokenizer)
    index = json.loads((out / "index.json").read_text())
    index["kinds"]["chat"] = counts
    (out / "index.json").write_text(json.dumps(index, indent=2) + "\n")
    return counts


def build_corpus(
    out: Path,
    gsm8k: Path,
    sampled: Path | None,
    *,
    tokenizer_folder: Path,
    cache: Path,
    prompts: Path | None = None,
    report: Callable[[str], None] = print,
) -> dict[str, dict[str, dict[str, int]]]:
    """Build the whole corpus under `out`; returns documents and tokens per kind and split.

    gsm8k: the GSM8K training file. sampled: folder of text from tools/sample_smollm2.py, or None for no chats (they can
    come later: add_chats). tokenizer_folder: a tokenizer is trained on the corpus and saved there if it holds none.
    cache: where Debian packages are kept unpacked. prompts: where to write the held-out prompts as JSON lines.

    Raises ConfigError for a source that cannot be had or must not be used.
    """
    documents = collect_documents(gsm8k, sampled, cache)
    if not (tokenizer_folder / "tokenizer.json").is_file():
        report("training the tokenizer")
        save_tokenizer(train_tokenizer(tokenizer_texts(documents)), tokenizer_folder)
    tokenizer = load_tokenizer(tokenizer_folder)
    out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for kind in KINDS:
        counts[kind] = write_kind(out, kind, documents[kind], tokenizer)
        report(f"{kind}: " + ", ".join(f"{n['tokens']} tokens {split}" for split, n in counts[kind].items()))
    index = {"vocab_size": tokenizer.get_vocab_size(), "kinds": counts, "sources": [asdict(s) for s in SOURCES]}
    (out / "index.json").write_text(json.dumps(index, indent=2) + "\n")
    if prompts is not None:
        chat = generate_prompts(concrete_nouns(read_entries(wordnet(cache))), 4000)
        write_prompts(prompts, held_out_prompts(documents, chat, tokenizer))
    return counts


def write_prompts(path: Path, prompts: dict[str, list[str]]) -> None:
    """Write prompts as JSON lines with `kind` and `prompt` (rendered text, markers included)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"kind": kind, "prompt": prompt} for kind, texts in prompts.items() for prompt in texts]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
