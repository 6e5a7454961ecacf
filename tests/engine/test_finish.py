"""Where requests end. Reported rows are those of faults that users met in other engines."""

from __future__ import annotations

import pytest

from frostline.engine.finish import FinishRules
from frostline.errors import RequestError
from frostline.types import RequestOutput, SamplingParams
from tests.engine.harness import run_script
from tests.text.byte_level import BOS, END_OF_TURN, EOS, byte_ids, byte_level

X, Y, A, B = byte_ids("xyab")
WORDS = byte_level().encode("the answer\n\nQuestion: of the line", add_bos=False)
RUNS = [[1], [5], [2, 3, 1, 5], [5] * 9, [3] * 9, [4, 1] * 9]


def check_counts(output: RequestOutput) -> None:
    (completion,) = output.outputs
    assert len(completion.token_ids) == 1 + sum(output.stats.run_lengths)


@pytest.mark.parametrize("runs", RUNS)
def test_reported_9_stop_string_early_in_a_run(runs: list[int]) -> None:
    output = run_script(WORDS, runs, SamplingParams(stop="\n\nQuestion:", max_tokens=40))
    (completion,) = output.outputs
    assert completion.text == "the answer"
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "\n\nQuestion:")
    assert byte_level().decode(completion.token_ids).startswith("the answer\n\nQuestion:")
    assert "\n\nQuestion:" not in byte_level().decode(completion.token_ids[:-1])
    check_counts(output)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("include", [False, True])
def test_reported_10_nothing_after_the_stop(runs: list[int], include: bool) -> None:
    tokens = [*byte_ids("one END two"), EOS, X]
    output = run_script(tokens, runs, SamplingParams(stop=["END"], include_stop_str_in_output=include, max_tokens=30))
    assert output.outputs[0].text == ("one END" if include else "one ")
    assert output.outputs[0].token_ids == tuple(tokens[:7])
    check_counts(output)


def test_reported_11_eos_in_the_last_run_is_not_a_length_finish() -> None:
    tokens = [A] * 8 + [EOS, X, Y]
    output = run_script(tokens, [4, 3, 3], SamplingParams(max_tokens=10))
    (completion,) = output.outputs
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert completion.token_ids == tuple(tokens[:9])
    assert completion.text == "a" * 8
    assert output.stats.run_lengths == (4, 3, 1)


@pytest.mark.parametrize("runs", RUNS)
def test_reported_12_stop_spelt_by_unusual_tokens(runs: list[int]) -> None:
    spelt = byte_ids("<END>")
    assert len(spelt) == 5 > len(byte_level().encode("<END>", add_bos=False))
    output = run_script([A, *spelt, B], runs, SamplingParams(stop="<END>", max_tokens=8))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("a", "stop")
    assert output.outputs[0].token_ids == (A, *spelt)


@pytest.mark.parametrize(
    ("tokens", "runs", "params", "length", "reason"),
    [
        # An earlier EOS beats a later stop string of the same run, and the other way round.
        ([A, B, EOS, X, Y], [4], SamplingParams(stop="y", max_tokens=9), 3, None),
        ([A, B, X, EOS, Y], [4], SamplingParams(stop="x", max_tokens=9), 3, "x"),
        # The same token: stop string before stop token before length.
        ([A, B, X], [2], SamplingParams(stop="x", stop_token_ids=(X,), max_tokens=3), 3, "x"),
        ([A, B, X], [2], SamplingParams(stop_token_ids=(X,), max_tokens=3), 3, X),
        # Length before a stop further on.
        ([A, B, X, EOS], [3], SamplingParams(max_tokens=2), 2, "length"),
        # The first token of all, which is in no run.
        ([EOS, X], [], SamplingParams(max_tokens=9), 1, None),
        ([X], [], SamplingParams(stop="x", max_tokens=9), 1, "x"),
        ([X], [], SamplingParams(max_tokens=1), 1, "length"),
    ],
)
def test_the_smallest_cut_wins(
    tokens: list[int], runs: list[int], params: SamplingParams, length: int, reason: str | int | None
) -> None:
    output = run_script(tokens, runs, params)
    (completion,) = output.outputs
    assert completion.token_ids == tuple(tokens[:length])
    if reason == "length":
        assert (completion.finish_reason, completion.stop_reason) == ("length", None)
    else:
        assert (completion.finish_reason, completion.stop_reason) == ("stop", reason)
    check_counts(output)


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("runs", RUNS)
def test_max_tokens_is_exact(count: int, runs: list[int]) -> None:
    output = run_script([A, B] * 10, runs, SamplingParams(max_tokens=count))
    assert output.outputs[0].token_ids == tuple(([A, B] * 10)[:count])
    assert output.outputs[0].finish_reason == "length"


def test_eos_list_ignore_eos_and_stop_token_ids() -> None:
    tokens = [A, END_OF_TURN, B, EOS, X]
    assert run_script(tokens, [4], SamplingParams(max_tokens=5), eos=(EOS, END_OF_TURN)).outputs[0].token_ids == (
        A,
        END_OF_TURN,
    )
    ignored = run_script(tokens, [4], SamplingParams(max_tokens=5, ignore_eos=True)).outputs[0]
    assert (ignored.token_ids, ignored.finish_reason) == (tuple(tokens), "length")
    own = run_script(tokens, [4], SamplingParams(max_tokens=5, ignore_eos=True, stop_token_ids=(EOS,))).outputs[0]
    assert (own.token_ids, own.stop_reason, own.text) == (tuple(tokens[:4]), EOS, "ab")


def test_an_ordinary_stop_token_is_in_the_ids_and_not_in_the_text() -> None:
    params = SamplingParams(stop_token_ids=(X,), max_tokens=9)
    assert run_script([A, X, B], [3], params).outputs[0].text == "a"
    params = SamplingParams(stop_token_ids=(X,), max_tokens=9, include_stop_str_in_output=True)
    output = run_script([A, X, B], [3], params).outputs[0]
    assert (output.text, output.token_ids) == ("ax", (A, X))


def test_special_tokens_in_text_only_when_asked_for_and_then_a_stop_string_can_be_one() -> None:
    tokens = [A, BOS, B, END_OF_TURN, X]
    assert run_script(tokens, [4], SamplingParams(max_tokens=5)).outputs[0].text == "abx"
    shown = SamplingParams(max_tokens=5, skip_special_tokens=False)
    assert run_script(tokens, [4], shown).outputs[0].text == "a<bos>b<turn|>x"
    stopped = SamplingParams(max_tokens=5, skip_special_tokens=False, stop="<turn|>")
    assert run_script(tokens, [4], stopped).outputs[0].text == "a<bos>b"


@pytest.mark.parametrize("runs", RUNS)
def test_stop_string_of_characters_that_tokens_split(runs: list[int]) -> None:
    tokens = byte_ids("ok 한😀 more")
    output = run_script(tokens, runs, SamplingParams(stop=["한😀"], max_tokens=40)).outputs[0]
    assert (output.text, output.token_ids) == ("ok ", tuple(tokens[:10]))


def test_the_first_complete_stop_of_several_wins() -> None:
    params = SamplingParams(stop=["abab", "ba", "zz"], max_tokens=9)
    output = run_script([A, B, A, B], [3], params).outputs[0]
    assert (output.text, output.stop_reason, len(output.token_ids)) == ("a", "ba", 3)


def test_text_cut_inside_a_character_shows_a_replacement() -> None:
    output = run_script(byte_ids("a😀"), [5], SamplingParams(max_tokens=3)).outputs[0]
    assert output.text == "a\ufffd"


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(RequestError, match="stop_token_ids or load a tokenizer"):
        FinishRules(SamplingParams(stop="x"), max_new_tokens=4, eos_token_ids=(), decoder=None)
    rules = FinishRules(SamplingParams(), max_new_tokens=2, eos_token_ids=(), decoder=None)
    cut = rules.cut([A, B, X], emitted=0)
    assert cut.length == 2 and cut.finish is not None and rules.text([A, B], cut.finish) == ""
