"""Names to folders and dtypes; the hub is replaced by a function, no test reaches it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from frostline.errors import ConfigError, ModelError
from frostline.model.dtypes import resolve_dtype
from frostline.model.resolve import find_draft, resolve_model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[tuple[str, list[str]]]]:
    """Call with what the hub answers, a folder or an error; gives the list of what it was asked for."""

    def answer(result: Any) -> list[tuple[str, list[str]]]:
        asked: list[tuple[str, list[str]]] = []

        def download(name: str, *, allow_patterns: list[str]) -> str:
            asked.append((name, allow_patterns))
            if isinstance(result, Exception):
                raise result
            return str(result)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return asked

    return answer


def _http(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "404\nrequest id")
    return error


def test_local_folder_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/name") == Path("owner/name")
    assert resolve_model(tmp_path) == tmp_path


def test_hub_name(tmp_path: Path, hub: Any) -> None:
    asked = hub(tmp_path)
    assert resolve_model("google/gemma-4-E2B-it") == tmp_path
    resolve_model("google/gemma-4-E2B-it", weights=False)
    assert [name for name, _ in asked] == ["google/gemma-4-E2B-it"] * 2
    assert "*.safetensors" in asked[0][1] and "*.safetensors" not in asked[1][1]
    assert all("*.json" in patterns and "*.jinja" in patterns for _, patterns in asked)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("no\nconnection"), "cannot be reached; give a local folder"),
        (_http(RepositoryNotFoundError), "neither a local folder nor a model on the hub"),
        (_http(GatedRepoError), "gated: accept its terms"),
        (OSError("disk\nfull"), "could not be downloaded \\(disk full\\)"),
    ],
)
def test_hub_errors_are_one_line(hub: Any, error: Exception, words: str) -> None:
    hub(error)
    with pytest.raises(ModelError, match=words) as caught:
        resolve_model("owner/name")
    assert "\n" not in str(caught.value)


def test_offline_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="give a local folder"):
        resolve_model("owner/no-such-model")


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "missing", "a/b/c", "owner/na me", ""])
def test_unknown_paths_do_not_reach_the_hub(hub: Any, name: str) -> None:
    asked = hub(AssertionError("asked"))
    with pytest.raises(ModelError, match="no folder" if name else "is empty"):
        resolve_model(name)
    assert not asked


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelError, match="is a file; give the folder"):
        resolve_model(file)


def test_unknown_bundled_name() -> None:
    with pytest.raises(ModelError, match="no bundled model"):
        resolve_model("frostline/no-such-model")


class TestFindDraft:
    def test_none(self, tmp_path: Path) -> None:
        assert find_draft(tmp_path, "none") is None

    def test_named(self, tmp_path: Path) -> None:
        assert find_draft("whatever", str(tmp_path)) == tmp_path
        with pytest.raises(ModelError):
            find_draft(tmp_path, str(tmp_path / "missing"))

    @pytest.mark.parametrize("ending", ["", "/", "/."])
    def test_auto_next_to_a_local_target(self, tmp_path: Path, ending: str) -> None:
        for name in ("m", "m-assistant"):
            (tmp_path / name).mkdir()
        assert find_draft(str(tmp_path / "m") + ending, "auto") == tmp_path / "m-assistant"

    def test_auto_in_the_working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("m", "m-assistant"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "m")
        assert find_draft(".", "auto") == tmp_path / "m-assistant"

    def test_auto_without_one_warns(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            assert find_draft(tmp_path, "auto") is None
        assert "no assistant" in caplog.text

    def test_auto_on_the_hub(self, tmp_path: Path, hub: Any) -> None:
        asked = hub(tmp_path)
        assert find_draft("google/gemma-4-E2B-it", "auto") == tmp_path
        snapshot = tmp_path / "models--google--gemma-4-E2B-it" / "snapshots" / "0123"
        snapshot.mkdir(parents=True)
        assert find_draft(snapshot, "auto") == tmp_path
        assert [name for name, _ in asked] == ["google/gemma-4-E2B-it-assistant"] * 2

    def test_auto_offline_warns(self, hub: Any, caplog: pytest.LogCaptureFixture) -> None:
        hub(LocalEntryNotFoundError("offline"))
        with caplog.at_level(logging.WARNING):
            assert find_draft("google/gemma-4-E2B-it", "auto") is None
        assert "cannot be reached" in caplog.text


@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        ("auto", "cpu", torch.float32),
        ("auto", "cuda", torch.bfloat16),
        ("float64", "cpu", torch.float64),
        ("float16", "cuda", torch.float16),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_dtype(name: str, device: str, dtype: torch.dtype) -> None:
    assert resolve_dtype(name, config_dtype="bfloat16", device=device) is dtype


def test_unknown_dtype() -> None:
    with pytest.raises(ConfigError, match="must be auto, float32, bfloat16, float16, float64, got 'fp8'"):
        resolve_dtype("fp8", config_dtype="bfloat16", device="cpu")
