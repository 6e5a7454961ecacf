"""Rows of reported.md that concern what is built so far: each has a test named after its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = (1, 3, 4, 5, 6, 8, 9, 10, 11, 12, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 33, 34, 35, 36, 37, 38, 39)
ROWS += (41, 42, 43, 44, 45)


@pytest.fixture(scope="module")
def named() -> set[int]:
    found = re.compile(r"^\s*def test_reported_0*(\d+)_", re.MULTILINE)
    return {int(row) for path in TESTS.rglob("test_*.py") for row in found.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("row", ROWS)
def test_the_row_has_a_test(row: int, named: set[int]) -> None:
    assert row in named
