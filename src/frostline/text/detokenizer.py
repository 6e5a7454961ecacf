"""Token ids to text one token at a time, without ever giving out half a character.

Knows a decoder of whole id sequences and nothing of models or requests. Decoding is repeated over a short window, so
the cost of a token does not grow with the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"

# The window is shortened once it spans this many tokens past a clean boundary ...
_WINDOW = 8
# ... and a run of tokens this long with no clean boundary cannot be one character: its bytes are simply not UTF-8.
_NEVER_CLEAN = 32
# No character has more bytes, hence more tokens, than this.
_CHARACTER = 4


class TokenDecoder(Protocol):
    """Decodes a whole sequence; bytes that are not UTF-8 become U+FFFD."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class IncrementalDetokenizer:
    """Concatenated pieces equal the decode of all ids.

    The last bytes of a sequence may be the first of a character: they decode to U+FFFD until the rest is there, so
    U+FFFD at the end is held back. The equality is exact for byte-level vocabularies, broken UTF-8 included.
    Vocabularies with byte fallback decode a row of byte tokens as one unit; there broken UTF-8 may come out as another
    number of U+FFFD.
    """

    def __init__(self, decoder: TokenDecoder, *, skip_special_tokens: bool = True) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        # From some earlier clean boundary on: decoders that strip a leading space need a token of context.
        self._window: list[int] = []
        self._clean = 0  # tokens of the window up to its last clean boundary
        self._sent = 0  # characters of the window's text already given out

    def push(self, token: int) -> str:
        """Text that became certain with this token; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode(self._window)
        certain = len(text.rstrip(REPLACEMENT))
        if certain < len(text):
            if len(self._window) - self._clean > _NEVER_CLEAN:
                return self._push_broken(text)
            piece = text[self._sent : certain]
            self._sent = max(self._sent, certain)
            return piece
        piece = text[self._sent :]
        self._sent = max(self._sent, certain)
        if len(self._window) > _WINDOW and (context := self._decode(self._window[self._clean :])):
            del self._window[: self._clean]
            self._sent = len(context)
        self._clean = len(self._window)
        return piece

    def flush(self) -> str:
        """The rest, when no more tokens will come: bytes of an unfinished character come out as U+FFFD."""
        piece = self._decode(self._window)[self._sent :]
        self._window, self._clean, self._sent = [], 0, 0
        return piece

    def _push_broken(self, text: str) -> str:
        """Give out all but the last U+FFFD, which alone may still become a character, and shorten the window."""
        piece = text[self._sent : len(text) - 1]
        # Tokens that are skipped may stand inside a character; the window must reach past them to its first byte.
        self._window = [token for token in self._window if self._decode([token])][-_CHARACTER:]
        self._clean = 0
        self._sent = max(0, len(self._decode(self._window)) - 1)
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip_special_tokens)


def whole_text(decoder: TokenDecoder, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """All ids as a stream of them ends up. Decoded at once where that is the same: where nothing is broken UTF-8."""
    text = decoder.decode(ids, skip_special_tokens=skip_special_tokens)
    if REPLACEMENT not in text:
        return text
    detokenizer = IncrementalDetokenizer(decoder, skip_special_tokens=skip_special_tokens)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()
