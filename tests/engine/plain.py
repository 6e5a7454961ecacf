"""What a request must give, by definition: one token at a time, the whole text decoded anew after each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from frostline.text.tokenizer import Tokenizer
from frostline.types import CompletionOutput, SamplingParams
from tests.engine.fake_executor import NextToken


def plain(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    next_token: NextToken,
    eos: Collection[int],
    max_context: int,
    tokenizer: Tokenizer,
) -> CompletionOutput:
    ids: list[int] = []
    limit = max_context - len(prompt)
    if params.max_tokens is not None:
        limit = min(limit, params.max_tokens)
    while True:
        history = [*prompt, *ids]
        ids.append(next_token(seed, len(history), history))
        text = tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
        found = _first_stop(text.rstrip("\ufffd"), params.stop_strings)
        if found is not None:
            before, stop = found
            text = before + stop if params.include_stop_str_in_output else before
            return _output(text, ids, "stop", stop)
        is_eos = ids[-1] in eos and not params.ignore_eos
        if is_eos or ids[-1] in params.stop_token_ids:
            shown = ids if params.include_stop_str_in_output else ids[:-1]
            text = tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
            return _output(text, ids, "stop", None if is_eos else ids[-1])
        if len(ids) == limit:
            return _output(text, ids, "length", None)


def _first_stop(text: str, stops: Sequence[str]) -> tuple[str, str] | None:
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


def _output(text: str, ids: list[int], reason: str, stop_reason: str | int | None) -> CompletionOutput:
    return CompletionOutput(text=text, token_ids=tuple(ids), finish_reason=reason, stop_reason=stop_reason)
