from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline import CompletionOutput, Logprob, RequestOutput
from frostline.cli.output import output_json
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLLM


def test_one_prompt_prints_its_text_and_nothing_else(run: Run, engines: list[FakeLLM]) -> None:
    result = run("generate", "--prompt", "Hi", "--max-tokens", "5")
    assert (result.exit_code, result.stdout) == (0, "abcde\n")
    assert "accept length" in result.stderr and "finish: length" in result.stderr
    assert engines[0].calls == [["Hi"]]


def test_prompts_come_in_order_from_options_stdin_and_file(run: Run, engines: list[FakeLLM], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("three\n\nvier ü\n", encoding="utf-8")
    result = run("generate", "--prompt", "one", "--prompt", "-", "--prompt-file", str(file), stdin="two\nlines")
    assert result.exit_code == 0
    assert engines[0].calls == [["one", "two\nlines", "three", "vier ü"]]


def test_chat_turns_are_one_conversation(run: Run, engines: list[FakeLLM]) -> None:
    assert run("generate", "--chat", "A?", "--chat", "B?", "--max-tokens", "2").exit_code == 0
    assert engines[0].conversations == [
        [{"role": "user", "content": "A?"}],
        [
            {"role": "user", "content": "A?"},
            {"role": "assistant", "content": "ab"},
            {"role": "user", "content": "B?"},
        ],
    ]


def test_json_has_the_names_of_the_python_api(run: Run, engines: list[FakeLLM]) -> None:
    result = run("generate", "--prompt", "Hi", "--max-tokens", "4", "--seed", "5", "--json")
    value = json.loads(result.stdout)
    request = value["requests"][0]
    assert request["outputs"][0]["text"] == "abcd"
    assert request["seed"] == 5
    assert request["stats"]["accept_length"] == 3.0
    assert set(request["stats"]) >= {"accept_length", "iterations", "drafted", "accepted_per_depth"}
    assert value["environment"]["torch"]


def test_samples_are_printed_one_after_another(run: Run, engines: list[FakeLLM]) -> None:
    result = run("generate", "--prompt", "Hi", "--max-tokens", "3", "--n", "2")
    assert (result.exit_code, result.stdout) == (0, "abc\nabc\n")
    assert "[1/1, sample 2/2] length" in result.stderr and "6 tokens" in result.stderr
    refused = run("generate", "--prompt", "Hi", "--n", "0")
    assert refused.exit_code == 2 and "n must be at least 1 sample" in refused.stderr


def test_promotion_is_said_once_on_stderr(run: Run, engines: list[FakeLLM]) -> None:
    args = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-draft-model-path", "D")
    result = run("generate", "--prompt", "Hi", *args)
    assert result.stderr.count("FROZEN_KV_MTP") == 1
    assert engines[0].config.num_steps == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prompt", ""), "prompt 1 is empty"),
        (("--prompt", "x", "--top-p", "0"), "top_p must be above 0"),
        (("--prompt", "x", "--num-steps", "-1"), "num_steps must be 0"),
        (("--prompt", "x", "--speculative-num-steps", "2", "--num-draft-tokens", "6"), "num_steps + 1 = 3"),
        (("--prompt", "x", "--temperature", "-0.5"), "temperature must be"),
        (("--prompt", "x", "--max-tokens", "0"), "max_tokens must be"),
        (("--prompt", "x", "--chat", "y"), "give one of them"),
        ((), "give --prompt, --prompt-file or --chat"),
        (("--prompt-file", "no/such/file"), "check the path"),
        (("--prompt", "x", "--speculative-algorithm", "EAGLE3"), "EAGLE3 is refused"),
        (("--prompt", "x", "--speculative-config", '{"methods": "mtp"}'), "methods"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy_and_loads_nothing(
    run: Run, engines: list[FakeLLM], args: tuple[str, ...], message: str
) -> None:
    result = run("generate", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert (result.stdout, engines) == ("", [])


def test_prompt_file_that_is_not_utf8_or_empty(run: Run, engines: list[FakeLLM], tmp_path: Path) -> None:
    latin, blank = tmp_path / "latin", tmp_path / "blank"
    latin.write_bytes(b"caf\xe9\n")
    blank.write_text("\n \n")
    assert "is not UTF-8 (byte 3)" in run("generate", "--prompt-file", str(latin)).stderr
    assert "holds no prompt" in run("generate", "--prompt-file", str(blank)).stderr


def test_ctrl_c_ends_quietly_with_130(run: Run, engines: list[FakeLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeLLM, "generate", interrupted)
    result = run("generate", "--prompt", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_a_bug_keeps_its_traceback(run: Run, engines: list[FakeLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(FakeLLM, "generate", broken)
    with pytest.raises(ZeroDivisionError):
        run("generate", "--prompt", "x")


def test_log_probabilities_are_in_the_json_only(run: Run, engines: list[FakeLLM]) -> None:
    result = run("generate", "--prompt", "Hi", "--logprobs", "1")
    assert result.exit_code != 0 and "add --json" in result.stderr and not engines
    result = run("generate", "--prompt", "Hi", "--logprobs", "21", "--json")
    assert result.exit_code != 0 and "logprobs must be 0" in result.stderr
    completion = CompletionOutput(
        text="a",
        token_ids=(5,),
        finish_reason="length",
        logprobs=({5: Logprob(logprob=-0.5, rank=1, decoded_token="a")},),
        cumulative_logprob=-0.5,
    )
    whole = RequestOutput(
        request_id="0",
        prompt="Hi",
        prompt_token_ids=(1, 2),
        outputs=(completion,),
        seed=0,
        prompt_logprobs=(None, {2: Logprob(logprob=-1.5, rank=3)}),
    )
    shown = output_json(whole)
    own = {"token_id": 5, "logprob": -0.5, "rank": 1, "decoded_token": "a"}
    assert shown["outputs"][0]["logprobs"] == [[own]] and shown["outputs"][0]["cumulative_logprob"] == -0.5
    assert shown["prompt_logprobs"][0] is None and shown["prompt_logprobs"][1][0]["rank"] == 3
