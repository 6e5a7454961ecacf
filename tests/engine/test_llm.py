"""The offline API on the fake device side: vLLM's conventions for prompts, parameters and outputs."""

from __future__ import annotations

import inspect
from dataclasses import asdict, fields
from typing import Any

import pytest

from frostline import RequestError, SamplingParams, SpeculativeConfig
from frostline.config import EngineConfig
from frostline.llm import LLM
from tests.engine.fake_executor import FakeExecutor, hashed
from tests.engine.harness import llm_on
from tests.text.byte_level import BOS, byte_ids, byte_level

LETTERS = byte_ids("abcdef")
PARAMS = SamplingParams(max_tokens=6, seed=5)


def llm(**device: Any) -> LLM:
    return llm_on(FakeExecutor(hashed(LETTERS), **device), tokenizer=byte_level())


@pytest.mark.parametrize(
    ("prompts", "ids"),
    [
        ("the line", [byte_level().encode("the line")]),
        (["the line", "of"], [byte_level().encode("the line"), byte_level().encode("of")]),
        ([40, 41], [(40, 41)]),
        ((40, 41), [(40, 41)]),
        ([[40, 41], [42]], [(40, 41), (42,)]),
        (["of", [42]], [byte_level().encode("of"), (42,)]),
        ([], []),
    ],
)
def test_prompts_in_every_form(prompts: Any, ids: list[tuple[int, ...]]) -> None:
    outputs = llm().generate(prompts, PARAMS)
    assert [output.prompt_token_ids for output in outputs] == ids
    assert all(output.prompt is None or output.prompt_token_ids[0] == BOS for output in outputs)
    for output in outputs:
        assert output.outputs[0].text == byte_level().decode(output.outputs[0].token_ids)
        assert len(output.outputs[0].token_ids) == 6 and output.seed == 5


@pytest.mark.parametrize("prompts", [[None], [["a"]], [[1, "a"]], [1.5, 2.5], [True], [1, "a"], [[True]]])
def test_other_forms_are_refused(prompts: Any) -> None:
    with pytest.raises(RequestError, match="a text, a list of token ids, or a list of such"):
        llm().generate(prompts)


def test_outputs_come_in_the_order_of_the_prompts_whatever_ends_first() -> None:
    params = [SamplingParams(max_tokens=n, seed=n) for n in (30, 1, 9, 2, 17, 3)]
    outputs = llm(num_rows=3).generate([[40 + n] for n in range(6)], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [30, 1, 9, 2, 17, 3]
    assert len({output.request_id for output in outputs}) == 6


def test_one_by_one_equals_the_batch() -> None:
    prompts, params = ["a", "bc", "the end"], [SamplingParams(max_tokens=20, seed=s) for s in (1, 2, 3)]
    together = llm().generate(prompts, params)
    alone = [llm().generate(prompt, own)[0] for prompt, own in zip(prompts, params, strict=True)]
    assert [output.outputs for output in together] == [output.outputs for output in alone]


def test_default_parameters_and_drawn_seeds() -> None:
    engine = llm()
    assert engine.default_sampling_params == SamplingParams()
    first, second = engine.generate(["a", "a"])
    assert len(first.outputs[0].token_ids) == 16 and first.seed != second.seed
    again = engine.generate("a", SamplingParams(seed=first.seed))[0]
    assert again.outputs == first.outputs


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", None, "the prompt is empty; give at least one character"),
        (["a", ""], None, "prompt 2 of 2: the prompt is empty"),
        ([[40], []], None, "prompt 2 of 2: the prompt is empty; give at least one token"),
        ("a" * 64, None, "raise max_model_len"),
        (["a", "b"], [SamplingParams()], "2 prompts but 1 sampling_params"),
    ],
)
def test_bad_input_stops_before_anything_runs(prompts: Any, params: Any, message: str) -> None:
    device = FakeExecutor(hashed(LETTERS))
    engine = llm_on(device, tokenizer=byte_level())
    with pytest.raises(RequestError, match=message):
        engine.generate(prompts, params)
    assert not device.steps
    assert len(engine.generate("a", PARAMS)) == 1


def test_nan_comes_back_as_an_output() -> None:
    (output,) = llm(nan=frozenset({(5, 2)})).generate("a", PARAMS)
    assert output.outputs[0].finish_reason == "error" and "NaN" in str(output.outputs[0].stop_reason)


def test_chat_renders_the_template_without_a_second_bos() -> None:
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm().chat(messages, PARAMS)
    assert output.prompt == "<bos><|turn>user\nhello<turn|>\n<|turn>model\n"
    assert output.prompt_token_ids.count(BOS) == 1
    (thinking,) = llm().chat(messages, PARAMS, chat_template_kwargs={"enable_thinking": True})
    assert str(thinking.prompt).endswith("<|think|>")
    several = llm().chat([messages, messages], PARAMS)
    assert [one.outputs for one in several] == [output.outputs] * 2
    with pytest.raises(RequestError, match="at least one message"):
        llm().chat([], PARAMS)


def test_a_model_without_a_tokenizer_takes_token_ids() -> None:
    engine = llm_on(FakeExecutor(hashed(LETTERS)))
    (output,) = engine.generate([40, 41], PARAMS)
    assert len(output.outputs[0].token_ids) == 6 and output.outputs[0].text == ""
    for call in (lambda: engine.generate("a"), lambda: engine.chat([{"role": "user"}]), lambda: engine.decode([40])):
        with pytest.raises(RequestError, match="give token ids or LLM"):
            call()


def test_with_speculative_changes_the_draft_and_not_the_output() -> None:
    engine = llm()
    plain = engine.with_speculative(SpeculativeConfig(num_steps=0))
    assert (engine.speculative.num_steps, plain.speculative.num_steps) == (4, 0)
    drafted, undrafted = engine.generate("a", PARAMS)[0], plain.generate("a", PARAMS)[0]
    assert drafted.outputs == undrafted.outputs
    assert drafted.stats.iterations < undrafted.stats.iterations == 5
    assert (undrafted.stats.drafted, undrafted.stats.accept_length) == (0, 1.0)


def test_every_option_of_the_engine_is_one_of_llm_with_the_same_default() -> None:
    options = inspect.signature(LLM).parameters
    assert {field.name: options[field.name].default for field in fields(EngineConfig)} == asdict(EngineConfig())


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    llm().generate(["a", "b"], PARAMS, use_tqdm=True)
    shown = capsys.readouterr()
    assert "2/2" in shown.err and "12 tokens, " in shown.err and " tokens/s" in shown.err and not shown.out
    llm().generate(["a", "b"], PARAMS)
    assert not capsys.readouterr().err
