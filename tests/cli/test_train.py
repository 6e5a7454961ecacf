from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_tiny_passes_its_options_on_and_fills_in_the_bundled_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr("frostline.train.tiny.train_tiny", lambda *args, **options: calls.append((args, options)))
    result = run("train", "tiny", "--corpus", "C", "--out", "O", "--stages", "sample, drafter", "--device", "cpu")
    assert result.exit_code == 0
    args, options = calls[0]
    assert args == (Path("C"), Path("O"))
    assert options["stages"] == ["sample", "drafter"]
    assert isinstance(options["prompts"], Path) and options["prompts"].is_file()


def test_an_unknown_stage_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("train", "tiny", "--corpus", str(tmp_path), "--out", str(tmp_path), "--stages", "pretrain")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown stage 'pretrain'") and result.stderr.count("\n") == 1


def test_corpus_passes_its_paths_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr("frostline.train.corpus.build_corpus", lambda *args, **options: calls.append((args, options)))
    assert run("train", "corpus", "--gsm8k", "G", "--out", "O", "--tokenizer", "T").exit_code == 0
    args, options = calls[0]
    assert args == (Path("O"), Path("G"), None)
    assert options["tokenizer_folder"] == Path("T")
