"""What users get: finished requests, and what each tick added to the open ones, as text that is never taken back.

Knows requests and their text; nothing of ticks, rows or pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frostline.engine.request import Request
from frostline.text.detokenizer import IncrementalDetokenizer, TokenDecoder
from frostline.types import RequestOutput, SpecStats, StreamOutput


def assemble(samples: Sequence[Request]) -> RequestOutput:
    """The samples of one prompt, all finished, as one output; its counters are their sums."""
    each = [request.output() for request in samples]
    completions = tuple(replace(one.outputs[0], index=index) for index, one in enumerate(each))
    return replace(
        each[0],
        outputs=completions,
        stats=SpecStats.total([one.stats for one in each]),
        num_cached_tokens=sum(one.num_cached_tokens for one in each),
        num_preemptions=sum(one.num_preemptions for one in each),
    )


class StreamedRequest:
    """One sample as it grows. `take` gives what came since the last time, until the request is over.

    Text that may still become part of a stop string, and bytes of an unfinished character, are held back; what has been
    given is the beginning of the final text, and the last piece completes it. is_over: the last piece was taken.
    """

    def __init__(self, request: Request, decoder: TokenDecoder | None) -> None:
        self.request = request
        self._sent_ids = 0
        self._sent_pieces = 0
        self._sent_text = 0
        self.is_over = False
        self._detokenizer: IncrementalDetokenizer | None = None
        if decoder is not None and request.rules.certain_pieces is None:
            skip = request.params.skip_special_tokens
            self._detokenizer = IncrementalDetokenizer(decoder, skip_special_tokens=skip)

    def take(self, *, prompt_index: int, index: int) -> StreamOutput | None:
        """None when nothing is new. prompt_index, index: which prompt of the call, which sample of it."""
        request, sent = self.request, self._sent_ids
        if self.is_over or (len(request.output_ids) == sent and not request.is_finished):
            return None
        self.is_over = request.is_finished
        ids = tuple(request.output_ids[sent:])
        self._sent_ids += len(ids)
        return StreamOutput(
            request_id=(request.parent or request).request_id,
            prompt_index=prompt_index,
            index=index,
            text=self._text(ids),
            token_ids=ids,
            finish_reason=None if request.finish is None else request.finish.reason,
            stop_reason=None if request.finish is None else request.finish.stop_reason,
            logprobs=request.logprobs.outputs(ids, request.rules.spell, start=sent),
        )

    def _text(self, ids: Sequence[int]) -> str:
        request, pieces = self.request, self.request.rules.certain_pieces
        if request.finish is not None:
            return request.rules.text(request.output_ids, request.finish)[self._sent_text :]
        if pieces is not None:
            piece = "".join(pieces[self._sent_pieces :])
            self._sent_pieces = len(pieces)
        elif self._detokenizer is not None:
            piece = "".join(map(self._detokenizer.push, ids))
        else:
            piece = ""
        self._sent_text += len(piece)
        return piece
