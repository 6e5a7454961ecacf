"""Stop strings on text that comes in pieces: found wherever they are cut, and never shown in part."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline.text.stop import StopMatcher


def first_match(text: str, stops: list[str]) -> tuple[str, str] | None:
    """By definition: at the first character where some stop string is complete, the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return None


@pytest.mark.parametrize("pieces", [["a<END>b"], ["a<", "END>b"], ["a", "<", "E", "N", "D", ">", "b"], ["a<EN", "D>"]])
def test_found_however_it_is_cut(pieces: list[str]) -> None:
    matcher, shown, found = StopMatcher(["<END>"]), "", None
    for piece in pieces:
        certain, found = matcher.feed(piece)
        shown += certain
        if found:
            break
    assert (shown, found) == ("a", "<END>")


def test_text_that_only_looked_like_a_stop_is_given_out() -> None:
    matcher = StopMatcher(["<END>"])
    assert matcher.feed("a<EN") == ("a", None)
    assert matcher.held == "<EN"
    assert matcher.feed("T") == ("<ENT", None)
    assert matcher.feed("<E") == ("", None)
    assert matcher.flush() == "<E"


def test_without_stops_nothing_is_held() -> None:
    assert StopMatcher([]).feed("text") == ("text", None)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_equals_the_definition_and_never_takes_back(stops: list[str], pieces: list[str]) -> None:
    expected = first_match("".join(pieces), stops)
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        certain, stop = matcher.feed(piece)
        shown += certain
        if stop is not None:
            assert (shown, stop) == expected
            return
        if expected is not None:
            assert expected[0].startswith(shown)
    assert expected is None
    assert shown + matcher.flush() == "".join(pieces)
