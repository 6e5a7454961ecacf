"""How commands print: text and tables for people on stdout, JSON for programs, remarks on stderr.

Knows the shape of results and nothing of how they came about.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frostline import __version__
from frostline.types import CompletionOutput, Logprobs, RequestOutput

PIPE_WIDTH = 140


def stdout() -> Console:
    """A pipe or a file has no width of its own, and a table in it must not lose figures."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    return console


def remark(line: str) -> None:
    """One line for the user that is not part of the result."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(line, style="dim"))


def write_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def rates(values: Sequence[float]) -> str:
    """Acceptance per depth, depth 1 first."""
    return " ".join(f"{value:.2f}" for value in values) or "-"


def figure_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table with the first column to the left and figures to the right."""
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def output_json(output: RequestOutput) -> dict[str, Any]:
    """One request, with the same names as the Python API."""
    stats = output.stats
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "preemptions": output.num_preemptions,
        "seed": output.seed,
        "outputs": [
            {
                "text": completion.text,
                "token_ids": list(completion.token_ids),
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
                **_logprobs_json(completion),
            }
            for completion in output.outputs
        ],
        **({} if output.prompt_logprobs is None else {"prompt_logprobs": _entries(output.prompt_logprobs)}),
        "stats": {
            "accept_length": round(stats.accept_length, 4),
            "iterations": stats.iterations,
            "drafted": stats.drafted,
            "drafted_per_depth": list(stats.drafted_per_depth),
            "accepted_per_depth": list(stats.accepted_per_depth),
            "run_lengths": list(stats.run_lengths),
        },
    }


def _logprobs_json(completion: CompletionOutput) -> dict[str, Any]:
    if completion.logprobs is None:
        return {}
    return {"cumulative_logprob": completion.cumulative_logprob, "logprobs": _entries(completion.logprobs)}


def _entries(logprobs: Sequence[Logprobs | None]) -> list[list[dict[str, Any]] | None]:
    """The token itself first at every position, as in the Python API; a list, for JSON's keys have no order to keep."""
    return [
        None if entry is None else [{"token_id": token, **asdict(logprob)} for token, logprob in entry.items()]
        for entry in logprobs
    ]


def environment(device: str) -> dict[str, Any]:
    """What a figure depends on: commit, versions, device, threads."""
    import torch

    from frostline.speculative.pair import resolve_device

    device = resolve_device(device)
    on_gpu = device.startswith("cuda")
    return {
        "frostline": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "device": torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    """The processor's own name where Linux tells it; what Python knows elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _commit() -> str | None:
    """The commit of the checkout that this file lies in, with "+" when files differ from it; None when installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
