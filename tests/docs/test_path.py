"""docs/path.md names real things: every dotted name in backticks imports."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(set(re.findall(r"`(frostline(?:\.\w+)+)`", (ROOT / "docs" / "path.md").read_text(encoding="utf-8"))))


def resolve(name: str) -> object:
    """The module, or the attribute of the longest module that the name begins with."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[count:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"{name} is not importable")


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name: str) -> None:
    resolve(name)


def test_the_page_follows_the_whole_path() -> None:
    assert len(NAMES) >= 40
    packages = {path.parent.name for path in (ROOT / "src" / "frostline").glob("*/__init__.py")}
    assert packages <= {name.split(".")[1] for name in NAMES}


def test_a_wrong_name_is_found() -> None:
    with pytest.raises(AttributeError):
        resolve("frostline.engine.loop.SyncLoop.tock")
