from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run

FIGURES = {
    "model": "M",
    "draft": None,
    "geometry": {
        "vocab_size": 262144,
        "layers": {"sliding": {"heads": 4, "window": 512}, "full": {"heads": 4, "window": None}},
    },
    "pair": {"fits": True, "reason": None},
    "floor": {"target_ms": 0.12345},
}


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []

    def describe(model: str, draft: str | None, **options: object) -> dict[str, object]:
        calls.append((model, draft, options))
        return FIGURES

    monkeypatch.setattr("frostline.model.figures.describe", describe)
    return calls


def test_tables(run: Run, described: list[tuple[object, ...]]) -> None:
    result = run("inspect", "M", "--bandwidth", "4800", "--num-steps", "3")
    assert result.exit_code == 0
    assert "262,144" in result.stdout and "0.1235" in result.stdout and "yes" in result.stdout
    assert "sliding" in result.stdout and "window" in result.stdout
    model, draft, options = described[0]
    assert (model, draft) == ("M", "auto")
    assert isinstance(options, dict) and options["bandwidth"] == 4800 and options["speculative"].num_steps == 3


def test_json(run: Run, described: list[tuple[object, ...]]) -> None:
    assert json.loads(run("inspect", "M", "--draft", "none", "--json").stdout) == FIGURES
    assert described[0][1] is None


def test_bad_bandwidth_is_one_line(run: Run) -> None:
    result = run("inspect", "frostline/tiny", "--bandwidth", "0")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
