"""Which tokens of an output were accepted drafts, and how that is shown: colour, or brackets where there is none.

Knows ids, run lengths and text pieces; no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from frostline.text.detokenizer import IncrementalDetokenizer, TokenDecoder
from frostline.types import RequestOutput

ACCEPTED_STYLE = "green"
BRACKETS = ("⟨", "⟩")
ASCII_BRACKETS = ("<", ">")


def accepted_flags(output: RequestOutput) -> tuple[bool, ...]:
    """One flag per token of the first completion: True for an accepted draft.

    The first token comes from prefill. A run is accepted drafts and then the bonus token, which the target itself
    chose; only a last run that a finish rule cut short may lack its bonus, and the request's counters tell.
    """
    lengths = output.stats.run_lengths
    flags = [False]
    for length in lengths[:-1]:
        flags += [True] * (length - 1) + [False]
    if lengths:
        accepted = sum(output.stats.accepted_per_depth) - sum(length - 1 for length in lengths[:-1])
        flags += [position < accepted for position in range(lengths[-1])]
    return tuple(flags[: len(output.outputs[0].token_ids)])


def pieces(token_ids: Sequence[int], decoder: TokenDecoder) -> Iterator[str]:
    """The text that each token adds; joined they are the full decode.

    A token that leaves a character incomplete adds nothing and its bytes come with the token that completes it.
    """
    detokenizer = IncrementalDetokenizer(decoder)
    for number, token in enumerate(token_ids, start=1):
        piece = detokenizer.push(token)
        yield piece if number < len(token_ids) else piece + detokenizer.flush()


def marked(parts: Iterable[tuple[str, bool]], console: Console) -> Text:
    """Text with accepted drafts in colour, or between brackets where the console has none.

    Neighbouring drafts share one mark; spaces at its ends stay outside the brackets.
    """
    coloured = console.is_terminal and not console.no_color and console.color_system is not None
    opening, closing = BRACKETS if _can_encode(console) else ASCII_BRACKETS
    result = Text()
    for accepted, group in groupby(parts, key=lambda part: part[1]):
        text = "".join(piece for piece, _ in group)
        if not accepted or not text.strip():
            result.append(text)
        elif coloured:
            result.append(text, style=ACCEPTED_STYLE)
        else:
            body = text.strip()
            start = text.index(body)
            result.append(f"{text[:start]}{opening}{body}{closing}{text[start + len(body) :]}")
    return result


def _can_encode(console: Console) -> bool:
    try:
        "".join(BRACKETS).encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
