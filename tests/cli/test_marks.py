from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from frostline.cli.marks import accepted_flags, marked, pieces
from frostline.types import CompletionOutput, RequestOutput, SpecStats


def output(tokens: int, lengths: tuple[int, ...], accepted: tuple[int, ...]) -> RequestOutput:
    return RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=(1,),
        outputs=(CompletionOutput(text="", token_ids=tuple(range(tokens)), finish_reason="length"),),
        seed=0,
        stats=SpecStats(iterations=len(lengths), run_lengths=lengths, accepted_per_depth=accepted),
    )


def flags(tokens: int, lengths: tuple[int, ...], accepted: tuple[int, ...]) -> str:
    return "".join("x" if flag else "." for flag in accepted_flags(output(tokens, lengths, accepted)))


def test_first_token_and_bonus_tokens_are_the_targets_own() -> None:
    assert flags(7, (3, 1, 2), (2, 1)) == ".xx..x."


def test_a_run_cut_inside_its_drafts_has_no_bonus() -> None:
    assert flags(6, (3, 2), (2, 2)) == ".xx.xx"


def test_a_run_cut_at_its_bonus_keeps_it() -> None:
    assert flags(6, (3, 2), (2, 1)) == ".xx.x."


def test_without_runs_only_the_first_token() -> None:
    assert flags(1, (), ()) == "."


def test_a_split_character_is_held_back_until_it_is_whole() -> None:
    data = [b"a", "é".encode()[:1], "é".encode()[1:], b"b", b"\xe2"]

    class Bytes:
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            return b"".join(data[i] for i in ids).decode("utf-8", "replace")

    assert list(pieces(range(4), Bytes())) == ["a", "", "é", "b"]
    assert list(pieces([0, 4], Bytes())) == ["a", "\ufffd"]


def console(*, colour: bool, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, force_terminal=colour, color_system="standard" if colour else None, _environ={})


PARTS = [("The", False), (" cat", True), (" sat", True), (" on", False), (" ", True), ("it", False)]


def test_brackets_without_colour_keep_spaces_outside() -> None:
    assert marked(PARTS, console(colour=False)).plain == "The ⟨cat sat⟩ on it"
    assert marked(PARTS, console(colour=False, encoding="ascii")).plain == "The <cat sat> on it"


def test_colour_leaves_the_text_alone() -> None:
    text = marked(PARTS, console(colour=True))
    assert text.plain == "The cat sat on it"
    assert [(span.start, span.end) for span in text.spans] == [(3, 11)]
