"""`frostline inspect`: geometry, pair check, bytes and time floors, as tables or JSON.

The figures come from the model layer; this module only lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from frostline.cli import output
from frostline.cli.options import DType, SpeculationOptions, grouped
from frostline.requirements import check_requirements

EPILOG = """Examples

frostline inspect frostline/tiny

frostline inspect ./gemma-4-E4B-it --draft ./gemma-4-E4B-it-assistant --bandwidth 4800 --batch 8

frostline inspect ./gemma-4-31B-it --draft none --json
"""

SCALARS = ("", "")


@grouped
def inspect(
    speculation: SpeculationOptions,
    model: Annotated[str, typer.Argument(help="Folder, hub id, or frostline/tiny.", metavar="MODEL")],
    bandwidth: Annotated[float, typer.Option("--bandwidth", help="Memory bandwidth in GB/s.", metavar="GB/S")] = 1000.0,
    dtype: Annotated[DType, typer.Option("--dtype", help="Precision of weights and KV.")] = "bfloat16",
    context: Annotated[int, typer.Option("--context", help="KV rows per request.", metavar="ROWS")] = 4096,
    batch: Annotated[int, typer.Option("--batch", help="Requests in the iteration.", metavar="B")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show a model's geometry, its pair check, the bytes one iteration reads and the time that takes at least."""
    meaning = speculation.resolve()
    for notice in meaning.notices:
        output.remark(notice)
    check_requirements()
    from frostline.model.figures import describe

    figures = describe(
        model,
        None if meaning.draft == "none" else meaning.draft,
        bandwidth=bandwidth,
        dtype=dtype,
        context=context,
        batch=batch,
        speculative=meaning.config,
    )
    if as_json:
        output.write_json(figures)
    else:
        show(figures, output.stdout())


def show(figures: Mapping[str, Any], console: Console, title: str = "") -> None:
    """Scalars as names and values; parts of one shape as a table of their own; other parts each by itself."""
    scalars = [(_words(name), cell(value)) for name, value in figures.items() if not isinstance(value, Mapping)]
    parts = {name: part for name, part in figures.items() if isinstance(part, Mapping)}
    if scalars:
        _print_table(console, title, SCALARS, scalars)
    columns = _shared_columns(list(parts.values()))
    if columns is not None and len(parts) > 1:
        rows = [[_words(name), *(cell(part[column]) for column in columns)] for name, part in parts.items()]
        _print_table(console, title, ("", *map(_words, columns)), rows)
        return
    for name, part in parts.items():
        show(part, console, f"{title}, {_words(name)}" if title else _words(name))


def _print_table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if title:
        console.print(Text(title, style="bold"))
    console.print(output.figure_table(columns, rows))
    console.print()


def cell(value: object) -> str:
    """A value as people read it; counts with thousands separated."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, list | tuple):
        return " ".join(cell(item) for item in value)
    return "-" if value is None else str(value)


def _words(name: str) -> str:
    return name.replace("gb_s", "GB/s").replace("_", " ")


def _shared_columns(parts: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """The keys that all parts have in the same order, when their values are scalars."""
    if not parts or any(list(part) != list(parts[0]) for part in parts):
        return None
    nested = any(isinstance(value, Mapping) for part in parts for value in part.values())
    return None if nested else list(parts[0])
