"""What a full page of KV holds, as a key: its token ids, everything before them, and the request's salt.

Knows token ids and salts; nothing of pages, groups or requests. A page's digest covers the digest of the page before,
so it stands for the whole prefix; it is the same in every process and cannot be steered by a prompt. It only finds a
candidate: keys are equal when the salt and every token up to the page's end are, so that two prefixes whose digests
collide can never share KV.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 32


class PageKey:
    """The key of one full page; `root` makes the key before the first page and `child` the next one.

    parent: key of the page before, None for a root. tokens: the page's own token ids, empty for a root.
    """

    __slots__ = ("_hash", "digest", "parent", "salt", "tokens")

    def __init__(self, parent: PageKey | None, tokens: tuple[int, ...], salt: str | None, digest: bytes) -> None:
        self.parent, self.tokens, self.salt, self.digest = parent, tokens, salt, digest
        self._hash = hash(digest)

    @classmethod
    def root(cls, salt: str | None) -> PageKey:
        """Where a chain begins. None is a salt of its own: it differs from every string, the empty one included."""
        return cls(None, (), salt, digest(b"" if salt is None else b"salt " + salt.encode("utf-8", "surrogatepass")))

    def child(self, tokens: Sequence[int]) -> PageKey:
        """The key of the page that holds `tokens` after everything that this key stands for."""
        return PageKey(self, tuple(tokens), self.salt, digest(self.digest + array("q", tokens).tobytes()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Same salt and same tokens from the root on. Equal chains share their ancestors afterwards: a comparison ends
        where two chains share a key, so each page of a chain is compared once and not once for every page after it.
        """
        if not isinstance(other, PageKey):
            return NotImplemented
        mine: PageKey | None = self
        theirs: PageKey | None = other
        while mine is not theirs:
            if mine is None or theirs is None or mine.tokens != theirs.tokens or mine.salt != theirs.salt:
                return False
            mine, theirs = mine.parent, theirs.parent
        mine, theirs = self, other
        while mine is not None and theirs is not None and mine is not theirs:
            ancestor, mine.parent = mine.parent, theirs.parent
            mine, theirs = ancestor, theirs.parent
        return True

    def __repr__(self) -> str:
        return f"PageKey({self.digest.hex()[:8]}, {self.tokens})"


def digest(data: bytes) -> bytes:
    """32 bytes of BLAKE2b: a root's data is its salt, another key's its parent's digest and its own ids of 8 bytes."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
