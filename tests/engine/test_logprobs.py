"""What a request keeps of the log-probabilities that come with its runs and chunks."""

from __future__ import annotations

import pytest

from frostline import SamplingParams
from frostline.engine.logprobs import LogprobRecord, batch_size_of
from frostline.speculative.step import PrefillChunk, PromptLogprobs, TokenLogprobs


def entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(logprob=-float(token), rank=token, top_ids=(7, 8, 9), top_logprobs=(-0.1, -0.2, -0.3))


def record(**params: int) -> LogprobRecord:
    return LogprobRecord(params=SamplingParams(**params), prompt_ids=(1, 2, 3, 4))


def spell(token: int) -> str:
    return f"<{token}>"


def test_a_batch_asks_for_few_different_sizes() -> None:
    assert [batch_size_of(wanted) for wanted in ([], [None], [0], [None, 1], [5, 0], [6], [20])] == [
        -1,
        -1,
        0,
        5,
        5,
        20,
        20,
    ]


def test_entries_are_cut_by_the_number_of_kept_ids() -> None:
    one = record(logprobs=2)
    one.keep((entry(4), entry(8), entry(5)), 2)
    found = one.outputs([4, 8], spell)
    assert found is not None and [list(each) for each in found] == [[4, 7, 8], [8, 7]]
    assert found[0][7].rank == 1 and found[0][8].rank == 2 and found[1][8].decoded_token == "<8>"
    assert one.total() == -12.0
    with pytest.raises(AssertionError, match="2 tokens were kept and 1 have entries"):
        one.keep((entry(1),), 2)
    nothing = record()
    nothing.keep((entry(4),), 1)
    assert nothing.outputs([], spell) is None and nothing.total() is None and nothing.prompts(spell) is None


def chunk(start: int, *tokens: int) -> PrefillChunk:
    return PrefillChunk(row=1, start=start, tokens=tokens, last=False)


def test_chunks_are_scored_until_the_prompt_is_known() -> None:
    one = record(prompt_logprobs=1)
    first = one.scored(chunk(0, 1, 2))
    assert (first.prompt_logprobs, first.following) == (1, 3)
    one.keep_prompt(PromptLogprobs(row=1, start=1, tokens=(entry(2), entry(3))))
    last = one.scored(chunk(2, 3, 4))
    assert (last.prompt_logprobs, last.following) == (1, None)
    # A resumed request prefills its output too; what follows the prompt is no entry of it.
    one.keep_prompt(PromptLogprobs(row=1, start=3, tokens=(entry(4), entry(9))))
    assert one.scored(chunk(0, 1, 2, 3, 4, 9)) == chunk(0, 1, 2, 3, 4, 9)
    found = one.prompts(spell)
    assert found is not None and [each and list(each) for each in found] == [None, [2, 7], [3, 7], [4, 7]]
    assert record(prompt_logprobs=1).scored(chunk(3, 4)) == chunk(3, 4), "the last token scores nothing of the prompt"
    assert record().scored(chunk(0, 1, 2)) == chunk(0, 1, 2)
