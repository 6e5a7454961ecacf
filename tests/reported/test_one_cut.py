"""Row 10 of reported.md on the bundled pair: ids, log-probabilities and counts end at one place, wherever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frostline import SamplingParams, SpeculativeConfig
from frostline.config import Schedule
from frostline.speculative.worker import WorkerExecutor
from tests.equality.bundled import PLAIN, bundle
from tests.reported.test_equal_to_serial import CHAIN, TREE, prompts, serial

DEEP = SpeculativeConfig(num_steps=8)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("config", "schedule"),
    [(PLAIN, "sync"), (CHAIN, "sync"), (CHAIN, "overlap"), (DEEP, "overlap"), (TREE, "overlap")],
    ids=["plain", "chain", "chain-overlap", "deep-overlap", "tree-overlap"],
)
def test_reported_10_ids_logprobs_and_counts_are_cut_by_one_number(
    config: SpeculativeConfig, schedule: Schedule, include: bool
) -> None:
    """The stop is each reply's own: a token that it has, or two characters of its text, somewhere in the middle."""
    whole = [output.outputs[0] for output in serial(8)]
    rows, lengths = [], []
    for number, reply in enumerate(whole):
        base = SamplingParams(
            temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2, include_stop_str_in_output=include
        )
        if number % 2:
            stop = reply.token_ids[5]
            rows.append(replace(base, stop_token_ids=(stop,)))
            lengths.append(reply.token_ids.index(stop) + 1)
        else:
            stop_text = reply.text[len(reply.text) // 2 :][:2]
            rows.append(replace(base, stop=(stop_text,)))
            decode = bundle().tokenizer.decode
            lengths.append(next(n for n in range(1, 13) if stop_text in decode(reply.token_ids[:n])))
    llm = bundle().llm(config, wrap=WorkerExecutor, batch=8, context=512, schedule=schedule)
    for output, reply, length, row in zip(llm.generate(prompts(8), rows), whole, lengths, rows, strict=True):
        (got,) = output.outputs
        assert got.finish_reason == "stop" and got.token_ids == reply.token_ids[:length]
        assert 1 + sum(output.stats.run_lengths) == length
        assert got.logprobs is not None and len(got.logprobs) == length
        assert all(token in entry for token, entry in zip(got.token_ids, got.logprobs, strict=True))
        for stop_text in row.stop_strings:
            before = reply.text[: reply.text.index(stop_text)]
            assert got.text == (before + stop_text if include else before)
