"""Sources, cleaning, split and files of the training corpus, on small samples written here."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from frostline.errors import ConfigError
from frostline.train.corpus import HELD_OUT_SHARE, add_chats, held_out_prompts, write_kind, write_prompts
from frostline.train.documents import Document, Turn, is_held_out
from frostline.train.gsm8k import gsm8k_documents
from frostline.train.prompts import generate_prompts
from frostline.train.pydocs import paragraphs
from frostline.train.sampled import clean_reply, sampled_documents
from frostline.train.sources import SOURCES
from frostline.train.synthetic import thinking_documents, tool_documents
from frostline.train.tokenizer import train_tokenizer
from frostline.train.wordnet import concrete_nouns, dictionary_documents, read_entries

WORDNET = {
    "data.noun": (
        "00000001 05 n 02 dog 0 canine 0 000 | a tame animal that barks; \"the dog barked all night\"  \n"
        "00000002 06 n 01 Paris 0 000 | the capital of France  \n"
    ),
    "index.noun": "dog n 1 0 1 1 00000001  \nparis n 1 0 1 0 00000002  \n",
    "cntlist.rev": "dog%1:05:00:: 1 42\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    syllables = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
    words = [a + b + c for a in syllables for b in syllables for c in syllables[:5]]
    return train_tokenizer([" ".join(words[i : i + 50]) for i in range(0, len(words), 50)])


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    for name in ("data.noun", "data.verb", "data.adj", "data.adv", "cntlist.rev"):
        (tmp_path / name).write_text(WORDNET.get(name, ""))
        (tmp_path / name.replace("data", "index")).write_text(WORDNET.get(name.replace("data", "index"), ""))
    (tmp_path / "cntlist.rev").write_text(WORDNET["cntlist.rev"])
    return tmp_path


def _chats(count: int) -> list[Document]:
    return [
        Document(kind="chat", turns=(Turn("user", f"Question {i}?"), Turn("model", f"Answer {i}.")))
        for i in range(count)
    ]


def test_split_is_deterministic_and_goes_by_question() -> None:
    documents = _chats(4000)
    held = [d for d in documents if is_held_out(d, HELD_OUT_SHARE)]
    assert 0.02 < len(held) / len(documents) < 0.04
    assert held == [d for d in _chats(4000) if is_held_out(d, HELD_OUT_SHARE)]
    first = held[0]
    reworded = Document(kind="tools", turns=(Turn("system", "<|think|>"), first.turns[0], Turn("model", "Another.")))
    assert is_held_out(reworded, HELD_OUT_SHARE)


def test_streams_are_disjoint_and_documents_end_properly(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = [
        *_chats(500),
        *_chats(20),
        Document(kind="chat", turns=(Turn("user", "long"), Turn("model", "7" * 600))),
    ]
    counts = write_kind(tmp_path, "chat", documents, tokenizer)
    assert counts["train"]["documents"] + counts["heldout"]["documents"] == 500  # no duplicate, none too long
    seen: dict[str, set[str]] = {}
    for split in ("train", "heldout"):
        tokens, offsets = np.load(tmp_path / f"chat-{split}.npy"), np.load(tmp_path / f"chat-{split}.offsets.npy")
        assert tokens.dtype == np.uint16
        assert offsets.dtype == np.uint32
        assert offsets[-1] == len(tokens) == counts[split]["tokens"]
        rows = [tokens[a:b].tolist() for a, b in pairwise(offsets)]
        assert all(row[0] == 2 and row[-1] == 1 and row[-3] == 106 and row.count(2) == 1 for row in rows)
        seen[split] = {tokenizer.decode(row) for row in rows}
    assert seen["train"]
    assert seen["heldout"]
    assert not seen["train"] & seen["heldout"]


def test_held_out_prompts_are_in_no_training_split(tokenizer: Tokenizer, tmp_path: Path) -> None:
    prose = [Document(kind="docs", text=f"Paragraph {i}. " + "Some words follow here. " * 12) for i in range(200)]
    documents = {kind: _chats(300) for kind in ("gsm8k", "reasoning", "dictionary", "tools")} | {"docs": prose}
    prompts = held_out_prompts(documents, [f"Chat {i}?" for i in range(300)], tokenizer)
    assert all(1 <= len(texts) <= 60 for texts in prompts.values())
    trained = {d.prompt() for d in documents["gsm8k"] if not is_held_out(d, HELD_OUT_SHARE)}
    assert not trained & set(prompts["gsm8k"])
    assert all(p.startswith("<bos>") for texts in prompts.values() for p in texts)
    assert all(p.endswith("<|turn>model\n") for p in prompts["chat"])
    assert all(len(tokenizer.encode(p, add_special_tokens=False).ids) <= 50 for p in prompts["docs"])
    write_prompts(tmp_path / "held_out.jsonl", prompts)
    rows = [json.loads(line) for line in (tmp_path / "held_out.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == set(prompts)


def test_gsm8k_loses_its_marks_and_the_test_file_is_refused(tmp_path: Path) -> None:
    row = {"question": "How many?", "answer": "She has 48/2 = <<48/2=24>>24.\n#### 24"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    (document,) = gsm8k_documents(tmp_path / "train.jsonl")
    assert document.turns[1].text == "She has 48/2 = 24.\nThe answer is 24."
    (thought,) = thinking_documents([document])
    assert thought.turns[2].text == "<|channel>thought\nShe has 48/2 = 24.<channel|>The answer is 24."
    with pytest.raises(ConfigError, match="test set"):
        list(gsm8k_documents(tmp_path / "gsm8k_test.jsonl"))


def test_documentation_keeps_prose_only() -> None:
    prose = "The loop runs until the condition is false, and the value of the last line is then given to the caller."
    page = f"""<p>{prose} Outside the body.</p><div role="main"><h1>Title</h1><p>{prose}</p><p>Too short.</p>
    <dl><dt>f(x, *, key=None)</dt><dd><p>{prose.replace("loop", "code<br>loop")}</p></dd></dl>
    <table><tr><td><p>{prose}</p></td></tr></table><div class="versionadded"><p>{prose}</p></div>
    <p>Call f(a, b) with a=1, b_2=[3] and then x.y.z = g(h(i)) or else j[k] += {{l}} so that m == n and p_q.</p>
    </div>"""
    assert paragraphs(page) == [prose, prose.replace("loop", "codeloop")]


def test_wordnet_gives_glosses_and_nouns(wordnet: Path) -> None:
    entries = read_entries(wordnet)
    assert [(e.lemma, e.count) for e in entries] == [("dog", 42)]  # a name is no lemma
    assert concrete_nouns(entries) == ["dog"]
    first, second = dictionary_documents(entries)
    assert first.turns[1].text == '"dog" (noun): A tame animal that barks. Example: The dog barked all night.'
    assert second.turns[1].text == 'Another word for "dog": canine.'


def test_sampled_replies_are_cleaned(tmp_path: Path) -> None:
    assert clean_reply("It\u2019s a fine day. And then the", ended=False) == "It's a fine day."
    assert clean_reply("No end in sight here", ended=False) is None
    assert clean_reply("As an AI language model I can not.", ended=True) is None
    assert clean_reply("one two three four five " * 4, ended=True) is None
    rows = [{"p": "Hi?", "r": "Hello, how are you today?", "e": 1}, {"p": "Bad?", "r": "x", "e": 1}]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(gzip.compress((json.dumps(r) + "\n").encode()) for r in rows))
    (document,) = sampled_documents(tmp_path)
    assert document.prompt() == "<bos><|turn>user\nHi?<turn|>\n<|turn>model\n"
    with pytest.raises(ConfigError, match="no sampled text"):
        list(sampled_documents(tmp_path / "empty"))


def test_chats_can_come_later(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [{"p": f"Question {i}?", "r": f"This is the answer number {i}.", "e": 1} for i in range(200)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    (tmp_path / "index.json").write_text(json.dumps({"kinds": {"docs": {}}}))
    counts = add_chats(tmp_path, tmp_path, tokenizer)
    assert counts["train"]["documents"] + counts["heldout"]["documents"] == 200
    assert json.loads((tmp_path / "index.json").read_text())["kinds"] == {"docs": {}, "chat": counts}


def test_prompts_are_distinct_and_repeatable() -> None:
    prompts = generate_prompts(["apple", "boat", "chair"], 500)
    assert len(set(prompts)) == 500
    assert prompts == generate_prompts(["apple", "boat", "chair"], 500)
    assert not any(" a a" in p or " a e" in p for p in prompts)


def test_made_up_tools_and_sources_are_complete() -> None:
    for document in tool_documents(50):
        reply = document.turns[2].text
        assert reply.count("<|tool_call>") == reply.count("<tool_call|>") == reply.count("<|tool_response>") == 1
        assert "{" not in reply.rpartition("<tool_response|>")[2]
    assert {k for s in SOURCES for k in s.kinds} == {"gsm8k", "reasoning", "docs", "dictionary", "chat", "tools"}
    assert all(s.licence and s.notice for s in SOURCES)
