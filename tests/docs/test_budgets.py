"""Sizes that keep the code readable: files and functions stay small, and every module says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES, KERNEL_FILE_LINES, MEDIAN_LINES, FUNCTION_LINES = 450, 600, 150, 60


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    limits = {path: KERNEL_FILE_LINES if "kernels" in path.parts else FILE_LINES for path in SOURCES}
    assert {path: count for path, count in lengths.items() if count > limits[path]} == {}
    assert median(lengths.values()) <= MEDIAN_LINES


def test_functions_are_short() -> None:
    """Lines of the body, from its first statement on: a signature may take a line per parameter."""
    long = {}
    for path in SOURCES:
        if "kernels" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.body[0].lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}


def test_nothing_is_left_undone() -> None:
    marks = ("TODO", "FIXME", "XXX", "NotImplementedError")
    found = [(path.name, mark) for path in SOURCES for mark in marks if mark in path.read_text(encoding="utf-8")]
    assert found == []
