"""Where a request ends. Each criterion names its cut position in the run, and the smallest wins.

Knows tokens and text of one request; nothing of pages, rows or other requests. Ids, text and counts are cut by the one
number that comes out. Of criteria that name the same token a stop string goes before EOS and stop tokens, and these
before length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from frostline.errors import RequestError
from frostline.text.detokenizer import IncrementalDetokenizer, TokenDecoder, whole_text
from frostline.text.stop import StopMatcher
from frostline.types import FinishReason, SamplingParams

NAN_LOGITS = (
    "the model's logits held NaN, so there was no token to choose; check the weights for NaN, or load with "
    "dtype='float32' if the checkpoint overflows in a narrower type"
)


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Why a request ended. stop_reason: the stop string, the stop token's id, or what went wrong; None for EOS.

    text: set when a stop string decided it. hides_last: the last id ended the request and is not part of the text.
    """

    reason: FinishReason
    stop_reason: str | int | None = None
    text: str | None = None
    hides_last: bool = False


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How many tokens of a run belong to the request, and why it ends there; `finish` is None when it goes on."""

    length: int
    finish: Finish | None = None


class FinishRules:
    """The criteria of one request, with the state that matching stop strings needs between runs.

    Before min_tokens nothing but the length ends it: the device emits no EOS and no stop token, and a stop string
    that is complete by then is passed over.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        max_new_tokens: int,
        eos_token_ids: Collection[int],
        decoder: TokenDecoder | None,
    ) -> None:
        self._params = params
        self._max_new_tokens = max_new_tokens
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._stop_ids = frozenset(params.stop_token_ids)
        self._decoder = decoder
        self._stop_text: _StopText | None = None
        if params.stop_strings:
            if decoder is None:
                raise RequestError("stop strings need the model's tokenizer; use stop_token_ids or load a tokenizer")
            self._stop_text = _StopText(decoder, params)

    @property
    def certain_pieces(self) -> Sequence[str] | None:
        """Text of an open request that no stop string can take back, in the order in which it became certain.

        None for a request without stop strings, whose text is not followed here.
        """
        return None if self._stop_text is None else self._stop_text.pieces

    def cut(self, run: Sequence[int], *, emitted: int) -> Cut:
        """The end of the request inside `run`, whose first token is number `emitted`, or the whole run."""
        candidates = [self._cut_by_token(run, emitted), self._cut_by_length(run, emitted)]
        whole = Cut(length=len(run))
        # min() keeps the first of equal lengths, which is the order of precedence.
        cut = min((c for c in candidates if c is not None), key=lambda c: c.length, default=whole)
        # Text is fed up to the cut and no further, so a stop string found there is at or before it.
        by_string = self._stop_text.cut(run[: cut.length], emitted) if self._stop_text is not None else None
        return cut if by_string is None else by_string

    def text(self, output_ids: Sequence[int], finish: Finish) -> str:
        """The text of a finished request; empty without a tokenizer."""
        if finish.text is not None:
            return finish.text
        if self._decoder is None:
            return ""
        ids = output_ids[:-1] if finish.hides_last else output_ids
        return whole_text(self._decoder, ids, skip_special_tokens=self._params.skip_special_tokens)

    def spell(self, token: int) -> str | None:
        """One token as text, special ones included; None without a tokenizer."""
        return None if self._decoder is None else self._decoder.decode([token], skip_special_tokens=False)

    def _cut_by_token(self, run: Sequence[int], emitted: int) -> Cut | None:
        for index, token in enumerate(run):
            if emitted + index < self._params.min_tokens:
                continue
            if token in self._eos or token in self._stop_ids:
                reason = None if token in self._eos else token
                hides = not self._params.include_stop_str_in_output
                return Cut(length=index + 1, finish=Finish(reason="stop", stop_reason=reason, hides_last=hides))
        return None

    def _cut_by_length(self, run: Sequence[int], emitted: int) -> Cut | None:
        left = self._max_new_tokens - emitted
        return Cut(length=left, finish=Finish(reason="length")) if left <= len(run) else None


class _StopText:
    """Text of a request that has stop strings, matched token by token so that the cut does not depend on the runs."""

    def __init__(self, decoder: TokenDecoder, params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(decoder, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop_strings)
        self._min_tokens = params.min_tokens
        self._include = params.include_stop_str_in_output
        self.pieces: list[str] = []

    def cut(self, run: Sequence[int], emitted: int) -> Cut | None:
        for index, token in enumerate(run):
            may_end = emitted + index >= self._min_tokens
            certain, stop = self._matcher.feed(self._detokenizer.push(token), match=may_end)
            self.pieces.append(certain)
            if stop is not None:
                text = "".join(self.pieces) + (stop if self._include else "")
                return Cut(length=index + 1, finish=Finish(reason="stop", stop_reason=stop, text=text))
        return None
