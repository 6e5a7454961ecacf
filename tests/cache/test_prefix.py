"""Prefix cache: keys that never confuse two prefixes, the longest usable hits, registration that keeps step."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Sequence
from hashlib import blake2b

import pytest

from frostline.cache import keys
from frostline.cache.keys import PageKey
from frostline.cache.pages import PageAllocator
from frostline.cache.prefix import PrefixCache, PrefixChain, PrefixHit
from frostline.types import GROUPS, Group

SIZE = 2


class Bench:
    """Both groups' pages and a cache over them; `serve` is a request that computes all its rows and leaves."""

    def __init__(self, *, pages: int = 64, window: int = 4, size: int = SIZE) -> None:
        self.size = size
        self.pages = {group: PageAllocator(pages, name=group) for group in GROUPS}
        self.cache = PrefixCache(self.pages, page_size=size, window=window)

    def chain(self, tokens: Sequence[int], salt: str | None = None) -> PrefixChain:
        chain = PrefixChain(self.size, salt=salt)
        chain.extend(tokens)
        return chain

    def tables(self, rows: int) -> dict[Group, list[int]]:
        return {group: list(self.pages[group].allocate(-(-rows // self.size))) for group in GROUPS}

    def release(self, tables: dict[Group, list[int]]) -> None:
        for group in GROUPS:
            self.pages[group].release([page for page in tables[group] if page])

    def serve(self, tokens: Sequence[int], salt: str | None = None) -> dict[Group, list[int]]:
        tables = self.tables(len(tokens))
        self.cache.register(self.chain(tokens, salt), len(tokens), tables)
        self.release(tables)
        return tables

    def rows(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """Length of the hit, which is given back at once."""
        hit = self.cache.match(self.chain(tokens, salt), len(tokens))
        self.cache.give_back(hit)
        self.check({})
        return hit.rows

    def check(self, held: dict[int, int]) -> None:
        for group in GROUPS:
            self.pages[group].check(held)


def test_the_same_prompt_again_recomputes_at_least_its_last_token() -> None:
    bench = Bench()
    for length, hit in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6)):
        bench = Bench()
        bench.serve(range(length))
        assert bench.rows(range(length)) == hit
        assert bench.rows([*range(length), 90, 91]) == length // SIZE * SIZE
    assert bench.rows([]) == 0


def test_a_hit_ends_where_the_tokens_differ() -> None:
    bench = Bench()
    bench.serve([1, 2, 3, 4, 5, 6, 7, 8])
    assert bench.rows([1, 2, 3, 4, 5, 6, 7, 9, 9]) == 6
    assert bench.rows([1, 2, 3, 9, 5, 6, 7, 8, 9]) == 2
    assert bench.rows([3, 4, 5, 6, 7, 8, 9]) == 0, "the same pages after another beginning are not the same"


def test_salts_share_nothing_and_none_is_a_salt_of_its_own() -> None:
    salts = (None, "", "a", "b", "salt ", "None", "\udcff", "ÿ")
    bench = Bench(pages=200)
    for count, salt in enumerate(salts):
        bench.serve(range(8), salt)
        found = [bench.rows(range(8), other) for other in salts]
        assert found == [6] * (count + 1) + [0] * (len(salts) - count - 1)


def test_pages_are_retained_and_tables_have_padding_before_the_window() -> None:
    bench = Bench(window=3)
    tables = bench.serve(range(10))
    hit = bench.cache.match(bench.chain(range(10)), 10)
    assert hit.rows == 8 and list(hit.pages["full"]) == tables["full"][:4]
    # Row 8 sees rows above 5: page 3 alone.
    assert (
        list(hit.pages["sliding"]) == [0, 0, 0, tables["sliding"][3]]
        and hit.held("sliding") == hit.pages["sliding"][3:]
    )
    assert (bench.pages["full"].num_owned, bench.pages["sliding"].num_owned) == (4, 1)
    again = bench.cache.match(bench.chain(range(10)), 10)
    assert again.pages == hit.pages and bench.pages["full"].holders(hit.pages["full"][0]) == 2
    for one in (hit, again):
        bench.cache.give_back(one)
    bench.check({})


@pytest.mark.parametrize("window", range(1, 12))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_exhaustively_the_longest_usable_hit_is_found(window: int, size: int) -> None:
    """Every set of pages that each group may have left of one chain, and every length of the next prompt."""
    count = 4
    tokens = list(range(count * size + 1))
    for full, sliding in itertools.product(itertools.product([0, 1], repeat=count), repeat=2):
        bench = Bench(pages=count + 2, window=window, size=size)
        tables = bench.serve(tokens)
        for group, there in zip(GROUPS, (sliding, full), strict=True):
            bench.pages[group].forget([page for page, kept in zip(tables[group], there, strict=False) if not kept])
        for rows in (1, size, size + 1, 3 * size, len(tokens) - 1, len(tokens)):
            usable = [
                m
                for m in range(count + 1)
                if m * size <= rows - 1
                and all(full[:m])
                and all(sliding[row // size] for row in range(max(0, m * size - window + 1), m * size))
            ]
            assert bench.rows(tokens[:rows]) == max(usable) * size


def test_pages_become_findable_as_rows_become_final_and_once() -> None:
    bench = Bench()
    tokens = list(range(20, 29))
    tables = bench.tables(len(tokens))
    chain = PrefixChain(SIZE)
    found = []
    for committed, token in enumerate(tokens, start=1):
        chain.extend([token])
        bench.cache.register(chain, committed, tables)
        hit = bench.cache.match(bench.chain([*tokens, 0]), len(tokens) + 1)
        found.append((hit.rows, chain.registered))
        bench.cache.give_back(hit)
    assert found == [(0, 0), (2, 1), (2, 1), (4, 2), (4, 2), (6, 3), (6, 3), (8, 4), (8, 4)]
    bench.cache.register(chain, 0, dict.fromkeys(GROUPS, ()))
    assert chain.registered == 4, "what is registered is not looked at again"


def test_sliding_pages_stay_findable_after_they_slid_out() -> None:
    bench = Bench(window=2)
    tables = bench.tables(8)
    chain = bench.chain(range(8))
    bench.cache.register(chain, 4, tables)
    bench.pages["sliding"].release([tables["sliding"][0]])
    tables["sliding"][0] = 0
    bench.cache.register(chain, 8, tables)
    assert bench.pages["sliding"].num_cached == 1
    hit = bench.cache.match(bench.chain(range(3)), 3)
    assert hit.rows == 2 and bench.pages["sliding"].num_cached == 0
    bench.cache.give_back(hit)
    bench.release(tables)
    bench.check({})
    # Its own table had no page 0 any more, yet the cache still finds the first rows of the sliding group.
    assert bench.rows(range(8)) == 6 and bench.rows(range(3)) == 2


def test_two_requests_that_computed_the_same_rows() -> None:
    """The first to register is found; the other's pages are free when it leaves; both may go in any order."""
    for first_leaves_first in (True, False):
        bench = Bench()
        chains = [bench.chain(range(6)) for _ in range(2)]
        tables = [bench.tables(6) for _ in range(2)]
        for chain, table in zip(chains, tables, strict=True):
            bench.cache.register(chain, 6, table)
        assert [chain.registered for chain in chains] == [3, 3]
        for table in tables if first_leaves_first else reversed(tables):
            bench.release(table)
        assert bench.pages["full"].num_cached == 3
        hit = bench.cache.match(bench.chain(range(6)), 6)
        assert list(hit.pages["full"]) == tables[0]["full"][:2]


def test_a_match_starts_the_registration_anew() -> None:
    """A preempted request comes back with other pages: those that are not from the cache are to be registered."""
    bench = Bench(pages=5)
    chain = bench.chain(range(7))
    tables = bench.tables(7)
    bench.cache.register(chain, 7, tables)
    bench.release(tables)
    bench.release(bench.tables(4))
    hit = bench.cache.match(chain, 7)
    assert hit.rows == 4 and chain.registered == 2
    grown = {group: [*hit.pages[group], *bench.pages[group].allocate(2)] for group in GROUPS}
    bench.cache.register(chain, 7, grown)
    bench.release(grown)
    assert chain.registered == 3 and bench.rows(range(7)) == 6


def test_a_request_that_is_not_admitted_gives_its_hit_back() -> None:
    bench = Bench(pages=6)
    bench.serve(range(6))
    before = [bench.pages[group].num_available for group in GROUPS]
    hit = bench.cache.match(bench.chain(range(6)), 6)
    assert [bench.pages[group].num_available for group in GROUPS] == [b - 2 for b in before]
    bench.cache.give_back(hit)
    bench.cache.give_back(bench.cache.match(bench.chain([7]), 1))
    bench.cache.give_back(PrefixHit())
    assert [bench.pages[group].num_available for group in GROUPS] == before


def test_eviction_takes_the_end_of_the_least_recently_used_chain() -> None:
    bench = Bench(pages=9, window=100)
    bench.serve([1, 1, 1, 1, 1, 1, 1, 1])
    bench.serve([2, 2, 2, 2, 2, 2, 2, 2])
    bench.rows([1, 1, 1, 1, 1])
    held = [bench.tables(2 * SIZE) for _ in range(2)]
    for tables in held:
        bench.release(tables)
    # Four pages taken: the untouched end of the first chain, and then the second from its end.
    assert bench.rows([1] * 9) == 4 and bench.rows([2] * 9) == 4


@pytest.mark.parametrize("width", [0, 1])
def test_colliding_digests_never_give_foreign_pages(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = keys.digest
    monkeypatch.setattr(keys, "digest", lambda data: honest(data)[:width])
    bench = Bench(pages=400, window=3)
    prompts = list(itertools.product([0, 1], repeat=6))
    held = set()
    for index, prompt in enumerate(prompts):
        salt = (None, "", "x")[index % 3]
        bench.serve(prompt, salt)
        held |= {(salt, prompt[:end]) for end in (2, 4, 6)}
        for other, wanted in itertools.product((None, "", "x"), prompts):
            expected = max(end for end in (0, 2, 4, 6) if not end or (other, wanted[:end]) in held)
            assert bench.rows([*wanted, 5], other) == expected
    assert len({PageKey.root(None).child(prompt) for prompt in prompts}) == len(prompts)


def test_keys_are_the_same_in_every_process() -> None:
    key = PageKey.root("tenant").child([1, 2]).child([300, 4])
    expected = b"salt tenant"
    for ids in ((), (1, 2), (300, 4)):
        expected = blake2b(expected + struct.pack(f"={len(ids)}q", *ids) if ids else expected, digest_size=32).digest()
    assert key.digest == expected
    assert key == PageKey.root("tenant").child((1, 2)).child((300, 4)) != PageKey.root("tenant").child((300, 4))
    assert key != "something else" and repr(key) == f"PageKey({expected.hex()[:8]}, (300, 4))"


def test_long_chains_are_compared_once() -> None:
    """4,096 pages: a lookup that compared each page with all before it would make 8 million comparisons."""
    bench = Bench(pages=5000, window=64, size=1)
    tokens = list(range(4096))
    bench.serve(tokens)
    began = time.perf_counter()
    for _ in range(3):
        assert bench.rows(tokens) == 4095
    assert time.perf_counter() - began < 1.0
