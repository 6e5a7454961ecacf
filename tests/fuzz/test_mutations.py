"""The oracle must notice: each test breaks one thing (tests.fuzz.faults) and expects a mix to fail, and how."""

from __future__ import annotations

from functools import cache

import pytest

from frostline.types import RequestOutput
from tests.fuzz import oracle
from tests.fuzz.faults import FAULTS
from tests.fuzz.mix import Ask, Mix, mix
from tests.fuzz.tables import POISON

# Recorded iterations have no words for what they see, only the row's own numbers.
RECORDED = ("window-too-wide", "evicted-too-early", "compaction-of-one-layer", "draft-sees-a-row-too-many")
# What no canary can see: tokens, nodes and counters are compared for these.
UNSEEN = (
    "draft-noise-of-the-next-position",
    "own-depth-ignored",
    "seed-of-a-neighbour",
    "stale-bonus",
    "counted-twice",
    "penalties-counted-once-a-step",
    "penalties-without-the-path",
    "resumed-without-counts",
    "resumed-with-an-old-bonus",
    "results-of-a-former-stay",
    "samples-of-one-seed",
    "hit-of-another-salt",
    "freed-while-in-flight",
    "logprobs-of-the-neighbour",
    "late-run-kept",
)
# Mixes in which a request fails on NaN, goes on from another's output, has several samples, a depth of its own, or
# penalties among many that grow long are few: a fault that needs one looks at these.
SORTS = {
    "no-scrub": "sick",
    "cached-with-the-bonus": "talks",
    "resumed-without-counts": "crowds",
    "own-depth-ignored": "depths",
} | dict.fromkeys(("tail-page-not-copied", "tail-page-shared"), "samples")
TRIES = 40

Case = tuple[Mix, list[RequestOutput]]


@pytest.fixture(scope="module")
def sound() -> dict[str, list[Case]]:
    """Mixes of each sort, and what they must give, worked out before anything is broken."""
    many = [mix(seed) for seed in range(600)]
    sick = [case for case in many if any(POISON in ask.prompt for ask in case.asks)]
    crowds = [case for case in many if len(case.asks) > 2 and any(_grows(ask) for ask in case.asks)]
    talks = [case for case in many if case.machine.cache and _goes_on(case.asks[0], case.asks[-1])]
    sorts = {
        "eager": [mix(seed, recorded=False) for seed in range(TRIES)],
        "recorded": [mix(seed, recorded=True) for seed in range(TRIES)],
        "sick": sick[:TRIES],
        "talks": talks[:TRIES],
        "depths": [case for case in many if len({ask.params.num_steps for ask in case.asks}) > 2][:TRIES],
        "samples": [case for case in many if any(ask.params.n > 1 for ask in case.asks)][:TRIES],
        "crowds": crowds[:TRIES],
    }
    return {sort: [(case, oracle.expected(case)) for case in cases] for sort, cases in sorts.items()}


def _grows(ask: Ask) -> bool:
    return ask.params.is_penalised and ask.params.ignore_eos and (ask.params.max_tokens or 0) > 8


def _goes_on(before: Ask, ask: Ask) -> bool:
    return (
        ask.tick > before.tick
        and len(ask.prompt) > len(before.prompt)
        and ask.prompt[: len(before.prompt)] == before.prompt
    )


def noticed(cases: list[Case]) -> str | None:
    """What the first mix that fails says."""
    for case, wanted in cases:
        try:
            oracle.check(case, wanted)
        except (AssertionError, ValueError) as failure:
            print(f"mix {case.seed}: {failure}")
            return str(failure)
    return None


@pytest.mark.parametrize("name", FAULTS)
def test_the_oracle_notices(name: str, sound: dict[str, list[Case]], monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    told = noticed(sound[SORTS.get(name, "eager")])
    assert told is not None
    assert ("canary" in told or "Fake" in told) == (name not in UNSEEN)


@pytest.mark.parametrize("name", RECORDED)
def test_the_oracle_notices_in_recorded_iterations(
    name: str, sound: dict[str, list[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On devices of their own: what they recorded stays broken."""
    monkeypatch.setattr(oracle, "_shared", cache(oracle._own))
    FAULTS[name](monkeypatch)
    assert noticed(sound["recorded"]) is not None
