from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline.cli import heldout, loading
from frostline.cli.cases import in_batches
from frostline.cli.dialects import Speculation
from frostline.cli.options import EngineOptions, ModelOptions
from frostline.config import SpeculativeConfig
from frostline.errors import ConfigError, ModelError
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLLM


def test_demo_marks_accepted_drafts_and_says_that_the_tokens_are_the_same(run: Run, engines: list[FakeLLM]) -> None:
    result = run("demo", "--max-tokens", "7")
    assert result.exit_code == 0
    assert "a⟨bc⟩d⟨ef⟩g" in result.stdout
    assert "identical: yes" in result.stdout
    for mode in ("plain", "chain", "tree"):
        assert mode in result.stdout


def test_demo_json(run: Run, engines: list[FakeLLM]) -> None:
    value = json.loads(run("demo", "--max-tokens", "7", "--num-steps", "3", "--json").stdout)
    assert value["identical"] is True
    assert list(value["modes"]) == ["plain", "chain", "tree"]
    chain = value["modes"]["chain"]
    assert (chain["num_steps"], chain["topk"], chain["num_draft_tokens"]) == (3, 1, 4)
    assert chain["accept_length"] == 3.0
    assert chain["acceptance_per_depth"] == [1.0, 1.0, 0.0]
    assert [request["kind"] for request in chain["requests"]] == ["story", "maths"]
    assert value["modes"]["tree"]["topk"] == 2


def test_demo_says_where_the_tokens_differ_and_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_llm(model: ModelOptions, speculation: Speculation, engine: EngineOptions, **options: bool) -> FakeLLM:
        return FakeLLM(speculation.config, broken=(2,))

    monkeypatch.setattr(loading, "open_llm", open_llm)
    monkeypatch.setattr("frostline.cli.demo.held_out", _one_prompt)
    result = run("demo", "--max-tokens", "7")
    assert result.exit_code == 1
    assert "identical: no" in result.stdout
    assert "tree differs from plain on 'story' at token 7" in result.stdout


def _one_prompt() -> list[heldout.HeldOut]:
    return [heldout.HeldOut(kind="story", prompt="Once")]


def test_demo_without_drafts_is_refused(run: Run, engines: list[FakeLLM]) -> None:
    result = run("demo", "--draft", "none")
    assert result.exit_code == 2
    assert "drafting is switched off" in result.stderr


def test_bench_measures_every_mode_and_batch_and_ratios_are_within_a_batch(run: Run, engines: list[FakeLLM]) -> None:
    result = run("bench", "latency", "--batch", "1,3", "--rounds", "2", "--max-tokens", "9", "--json")
    value = json.loads(result.stdout)
    cases = value["cases"]
    assert [(case["mode"], case["batch"]) for case in cases] == [
        (mode, size) for size in (1, 3) for mode in ("plain", "chain", "tree")
    ]
    assert all(len(case["seconds"]) == 2 and case["to_transformers"] is None for case in cases)
    assert [case["to_plain"] for case in cases if case["mode"] == "plain"] == [1.0, 1.0]
    assert [case["same_tokens_as_plain"] for case in cases] == [2, 2, 2, 3, 3, 3]
    assert "accept_length" not in cases[0] and cases[1]["accept_length"] > 1


def test_bench_sampled_measures_coupled_and_argmax_drafts(run: Run, engines: list[FakeLLM]) -> None:
    args = ("--temperature", "1", "--modes", "plain,chain", "--batch", "1", "--rounds", "1")
    value = json.loads(run("bench", "latency", *args, "--json").stdout)
    assert [(case["mode"], case["draft_sampling"]) for case in value["cases"]] == [
        ("plain", None),
        ("chain", "coupled"),
        ("chain", "argmax"),
    ]


def test_bench_prints_a_table(run: Run, engines: list[FakeLLM]) -> None:
    result = run("bench", "latency", "--batch", "2", "--rounds", "1", "--modes", "plain,tree")
    assert result.exit_code == 0
    assert "tok/s" in result.stdout and "2/2" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--batch", "1,x"), "--batch must be positive numbers"),
        (("--batch", "0"), "--batch must be positive numbers"),
        (("--modes", "chains"), "unknown mode 'chains'"),
        (("--draft", "none", "--modes", "chain"), "drafting is switched off"),
        (("--stop", "x"), "leave --stop out"),
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--against", "transformers", "--temperature", "1"), "leave --temperature at 0"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(
    run: Run, engines: list[FakeLLM], args: tuple[str, ...], message: str
) -> None:
    result = run("bench", "latency", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert engines == []


def test_bench_random_prompts_are_token_ids(run: Run, engines: list[FakeLLM]) -> None:
    args = ("--input-len", "6", "--batch", "1", "--modes", "plain", "--rounds", "1")
    assert run("bench", "latency", *args).exit_code == 0
    assert "give one of them" in run("bench", "latency", *args, "--prompt-file", "x").stderr


def test_drafts_that_were_asked_for_and_cannot_be_made_are_an_error() -> None:
    plain = FakeLLM(SpeculativeConfig(num_steps=0))
    with pytest.raises(ConfigError, match="no assistant was found beside M; name one with --draft PATH"):
        loading.require_drafts(plain, ModelOptions(model="M"), wanted=True)
    loading.require_drafts(plain, ModelOptions(model="M"), wanted=False)
    loading.require_drafts(FakeLLM(SpeculativeConfig()), ModelOptions(model="M"), wanted=True)


def test_prompts_fill_whole_batches() -> None:
    assert in_batches("abc", 2) == [["a", "b"], ["c", "a"]]
    assert in_batches("abc", 4) == [["a", "b", "c", "a"]]
    assert in_batches("abc", 1) == [["a"], ["b"], ["c"]]


def test_held_out_prompts_take_turns_between_kinds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [("maths", "1"), ("maths", "2"), ("maths", "3"), ("chat", "4"), ("docs", "5"), ("docs", "6")]
    text = "".join(json.dumps({"kind": kind, "prompt": prompt}) + "\n" for kind, prompt in rows)
    (tmp_path / heldout.FILE).write_text(text)
    monkeypatch.setattr(heldout, "bundled_path", lambda name: tmp_path)
    assert "".join(item.prompt for item in heldout.held_out()) == "145"
    assert "".join(item.prompt for item in heldout.held_out(5)) == "14526"
    (tmp_path / heldout.FILE).unlink()
    with pytest.raises(ModelError, match="give prompts of your own"):
        heldout.held_out()


def test_the_bundled_held_out_prompts_read_well() -> None:
    items = heldout.held_out()
    assert [item.kind for item in items] == ["gsm8k", "reasoning", "docs", "dictionary", "chat", "tools"]
    assert not any("<|turn>" in item.shown or "<bos>" in item.shown for item in items)
    asked = heldout.HeldOut(kind="chat", prompt="<bos><|turn>user\nWhy?<turn|>\n<|turn>model\n")
    assert asked.shown == "user: Why?"
