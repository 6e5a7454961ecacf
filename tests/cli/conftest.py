from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from typer.testing import CliRunner, Result

from frostline.cli import demo, loading
from frostline.cli.app import app
from frostline.cli.dialects import Speculation
from frostline.cli.heldout import HeldOut
from frostline.cli.options import EngineOptions, ModelOptions
from tests.cli.fakes import FakeLLM

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Runs the command as a user would; stdout, stderr and exit code come back."""

    def invoke(*args: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(args), input=stdin, catch_exceptions=False, prog_name="frostline")

    return invoke


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Stands in for the engine; the list holds each one that a command opened."""
    opened: list[FakeLLM] = []

    def open_llm(
        model: ModelOptions,
        speculation: Speculation,
        engine: EngineOptions,
        *,
        must_draft: bool = False,
        prefix_cache: bool = True,
    ) -> FakeLLM:
        opened.append(FakeLLM(speculation.config, schedule=engine.schedule))
        return opened[-1]

    def prompts(count: int | None = None) -> Sequence[HeldOut]:
        return [HeldOut(kind="story", prompt="Once"), HeldOut(kind="maths", prompt="1 + 1")]

    monkeypatch.setattr(loading, "open_llm", open_llm)
    monkeypatch.setattr(demo, "held_out", prompts)
    monkeypatch.setattr("frostline.cli.bench.held_out", prompts)
    monkeypatch.setattr("frostline.cli.workload.held_out", prompts)
    return opened
