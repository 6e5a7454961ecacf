"""The stages end to end at toy size: each goes on from the files of the one before, and the cards tell what was
measured.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from frostline.bundled import bundled_path
from frostline.errors import ConfigError
from frostline.train import tiny_config
from frostline.train.card import Facts
from frostline.train.drafter import DrafterSettings
from frostline.train.evaluate import EvalSettings
from frostline.train.on_policy import OnPolicySettings
from frostline.train.pretrain import PretrainSettings
from frostline.train.tiny import TinyRun, main, run_stages, train_tiny
from frostline.train.tokenizer import load_tokenizer

SOURCE = {"name": "made up", "kinds": ["sums"], "licence": "Apache-2.0", "notice": "none"}


@pytest.fixture
def tokenizer_folder() -> Path:
    # The tokenizer lies in the repository before the weights do.
    folder = Path(__file__).parents[2] / "models" / "tiny"
    return folder if (folder / "tokenizer.json").is_file() else bundled_path("tiny")


@pytest.fixture
def run(tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> TinyRun:
    target, assistant = tiny_config.target_config(), tiny_config.assistant_config()
    small_text = assistant["text_config"] | {"hidden_size": 32, "intermediate_size": 48}
    small: dict[str, Any] = assistant | {"backbone_hidden_size": 48, "text_config": small_text}
    monkeypatch.setattr(tiny_config, "target_config", lambda: target | {"hidden_size": 48, "intermediate_size": 64})
    monkeypatch.setattr(tiny_config, "assistant_config", lambda: small)
    corpus = tmp_path / "corpus"
    write_corpus(corpus, tokenizer_folder)
    return TinyRun(
        corpus=corpus,
        out=tmp_path / "out",
        tokenizer=tokenizer_folder,
        prompts=corpus / "prompts.jsonl",
        device=torch.device("cpu"),
        steps=3,
        pretrain=PretrainSettings(batch_tokens=128, length=64, held_out_tokens=64),
        drafter=DrafterSettings(batch_tokens=128, length=64, depths=2),
        on_policy=OnPolicySettings(rows_per_kind=4, max_new=12, batch=4),
        evaluation=EvalSettings(max_new=12, prompts_per_kind=2),
    )


def write_corpus(folder: Path, tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    folder.mkdir()
    texts = [
        f"<bos><|turn>user\nWhat is {a} + {b}?<turn|>\n<|turn>model\nThe answer is {a + b}.<turn|>\n<eos>"
        for a in range(6)
        for b in range(6)
    ]
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for split in ("train", "heldout"):
        np.save(folder / f"sums-{split}.npy", np.concatenate(rows).astype(np.uint16))
        np.save(folder / f"sums-{split}.offsets.npy", np.cumsum([0, *map(len, rows)]).astype(np.uint32))
    counts = {"documents": len(rows), "tokens": sum(map(len, rows))}
    index = {"kinds": {"sums": {"train": counts, "heldout": counts}}, "sources": [SOURCE]}
    (folder / "index.json").write_text(json.dumps(index))
    prompts = [{"kind": "sums", "prompt": text[: text.index("The answer")]} for text in texts[:2]]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))


def test_stages_go_on_from_each_other_and_write_cards(run: TinyRun) -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(ConfigError, match="stage `sample`"):
        run_stages(run, ["target", "drafter"], None, console)
    assert (run.target_folder / "model.safetensors").is_file()
    run_stages(run, ["sample"], None, console)
    facts = Facts(date="2030-01-02", hardware="one core", commit="abc", command="frostline train tiny")
    metrics = run_stages(run, ["drafter", "evaluate"], facts, console)
    assert json.loads((run.out / "metrics.json").read_text()) == metrics
    assert metrics["target"]["steps"] == metrics["drafter"]["steps"] == 3
    assert {"greedy", "greedy_kv_zeroed", "sampled", "greedy_lookup", "coupling"} <= metrics["evaluation"].keys()
    card = (run.assistant_folder / "README.md").read_text()
    assert "| greedy, drafter |" in card
    assert "2030-01-02 on one core, commit abc" in card
    assert "made up" in (run.target_folder / "README.md").read_text()
    again = replace(run, seed=run.seed)
    assert run_stages(again, [], None, console)["drafter"] == metrics["drafter"]


def test_bad_settings_say_what_to_do(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places: dict[str, Any] = {"tokenizer": tokenizer_folder, "prompts": tmp_path / "none.jsonl", "device": "cpu"}
    with pytest.raises(ConfigError, match="unknown stage 'polish'"):
        train_tiny(tmp_path, tmp_path / "out", stages=("polish",), **places)
    flags = ["--corpus", tmp_path, "--out", tmp_path / "out", "--tokenizer", tokenizer_folder, "--prompts", tmp_path]
    assert main([*map(str, flags), "--device", "cpu"]) == 2
    assert "no corpus in" in capsys.readouterr().out
