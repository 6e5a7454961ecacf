"""Requests that come and go while others run: add at any time, step, and take what the tick brought.

Knows requests and their outputs; nothing of rows, pages or how prompts become requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frostline.engine.calls import Calls
from frostline.engine.outputs import StreamedRequest, assemble
from frostline.engine.request import Request
from frostline.text.detokenizer import TokenDecoder
from frostline.text.prompts import Prompt
from frostline.types import SamplingParams, StreamOutput

MakeSamples = Callable[[Prompt, SamplingParams | None, str | None], list[Request]]


class Live:
    """One caller's open requests. decoder: None gives a request's text in its last piece, all at once.

    Close it, or whatever is open stays in the engine until it is over.
    """

    def __init__(self, calls: Calls, make_samples: MakeSamples, decoder: TokenDecoder | None) -> None:
        self._calls = calls
        self._make_samples = make_samples
        self._decoder = decoder
        self._call = calls.open()
        self._growing: dict[int, list[StreamedRequest]] = {}
        self._added = 0

    @property
    def num_open(self) -> int:
        """Prompts whose last piece has not been taken."""
        return len(self._growing)

    def add(self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None) -> int:
        """Queue a prompt; the number that its pieces carry as prompt_index, from 0 on. Raises RequestError."""
        return self.add_samples(self._make_samples(prompt, params, request_id))

    def add_samples(self, *prompts: list[Request]) -> int:
        """Queue the samples of several prompts, all or none of them; the number of the first."""
        self._calls.add(self._call, [request for samples in prompts for request in samples])
        first = self._added
        for number, samples in enumerate(prompts, start=first):
            self._growing[number] = [StreamedRequest(request, self._decoder) for request in samples]
        self._added += len(prompts)
        return first

    def step(self) -> list[StreamOutput]:
        """One tick, and what it added to the open prompts. Nothing, at once, when none is open."""
        self._calls.advance(self._call)
        news: list[StreamOutput] = []
        for number, samples in list(self._growing.items()):
            pieces = (sample.take(prompt_index=number, index=i) for i, sample in enumerate(samples))
            own = [piece for piece in pieces if piece is not None]
            if own and all(sample.is_over for sample in samples):
                own[-1] = replace(own[-1], output=assemble([sample.request for sample in samples]))
                del self._growing[number]
            news += own
        return news

    def close(self) -> None:
        """Abort what is open."""
        self._growing.clear()
        self._calls.finish(self._call)
