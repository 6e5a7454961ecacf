"""Incremental text equals the full decode, and no half character ever comes out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models

from frostline.text.detokenizer import IncrementalDetokenizer, whole_text
from tests.text.byte_level import SPECIALS, byte_ids, byte_level

TEXTS = [
    "plain ascii, nothing else",
    "😀😁 smile 👩‍👩‍👧 family 🇪🇺 flag",
    "日本語の文と、漢字。",
    "한국어 문장 하나와 둘",
    "e\u0301 n\u0303 a\u0323\u0302 combining",
    "ﷺ العربية हिन्दी ไทย",
    "mixed é日😀한x\n\n\ttabs",
]


def stream(ids: Sequence[int], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(byte_level(), skip_special_tokens=skip)
    return [detokenizer.push(token) for token in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spell", ["bytes", "tokens"])
def test_reported_38_concatenated_stream_is_the_full_decode(text: str, spell: str) -> None:
    ids = byte_ids(text) if spell == "bytes" else list(byte_level().encode(text, add_bos=False))
    pieces = stream(ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_comes_out_with_its_last_token() -> None:
    assert stream(byte_ids("a😀b")) == ["a", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    assert stream(byte_ids("a😀")[:-1]) == ["a", "", "", "", "\ufffd"]


def test_a_genuine_replacement_character_is_kept() -> None:
    assert "".join(stream(byte_ids("x\ufffdy\ufffd"))) == "x\ufffdy\ufffd"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, byte_level().vocab_size - 1), max_size=120), st.booleans())
def test_any_ids_at_all(ids: list[int], skip: bool) -> None:
    assert "".join(stream(ids, skip=skip)) == byte_level().decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*byte_ids("😀é"), 0, 1]), max_size=200))
def test_long_rows_of_broken_bytes(ids: list[int]) -> None:
    assert "".join(stream(ids)) == byte_level().decode(ids)


def test_broken_bytes_do_not_grow_the_window() -> None:
    longest = 0

    class Watched:
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return byte_level().decode(ids, skip_special_tokens=skip_special_tokens)

    detokenizer = IncrementalDetokenizer(Watched())
    ids = byte_ids("😀")[:1] * 2000 + byte_ids("text " * 200)
    text = "".join(detokenizer.push(token) for token in ids)
    assert text == byte_level().decode(ids) and longest < 64


def test_special_tokens_are_text_only_when_asked_for() -> None:
    ids = [3, *byte_ids("hi"), 4]
    assert "".join(stream(ids)) == "hi"
    assert "".join(stream(ids, skip=False)) == SPECIALS[3] + "hi" + SPECIALS[4]


class ByteFallback:
    """The released Gemma vocabulary's decoder: words with a mark for the space, and byte tokens for the rest."""

    def __init__(self) -> None:
        words = ["\u2581hello", "\u2581world", "!"]
        names = words + [f"<0x{byte:02X}>" for byte in range(256)]
        self.rust = RustTokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
        self.rust.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        self.first_byte = len(words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(self.rust.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def ids(self, text: str) -> list[int]:
        return [self.first_byte + byte for byte in text.encode()]


def test_reported_38_byte_fallback_vocabulary() -> None:
    decoder = ByteFallback()
    ids = [0, 1, *decoder.ids("😀日本한😁"), 2, 1, *decoder.ids("é"), 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    detokenizer = IncrementalDetokenizer(decoder)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == decoder.decode(ids, skip_special_tokens=True)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_reply_cut_inside_a_character_keeps_the_whole_ones_before_it() -> None:
    """The decoder of such a vocabulary gives the row of bytes up as a whole; a stream has shown its beginning."""
    decoder = ByteFallback()
    ids = [0, *decoder.ids("日本")[:-1]]
    assert decoder.decode(ids, skip_special_tokens=True) == "hello" + "\ufffd" * 5
    detokenizer = IncrementalDetokenizer(decoder)
    streamed = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert streamed == whole_text(decoder, ids, skip_special_tokens=True) == "hello日" + "\ufffd" * 4


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 2), st.sampled_from([3 + byte for byte in "é日😀".encode()])), max_size=60))
def test_reported_38_the_whole_text_is_what_was_streamed_broken_or_not(ids: list[int]) -> None:
    decoder = ByteFallback()
    detokenizer = IncrementalDetokenizer(decoder)
    streamed = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert whole_text(decoder, ids, skip_special_tokens=True) == streamed
