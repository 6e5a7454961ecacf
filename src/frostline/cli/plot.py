"""The picture of a throughput run: tokens per second and latencies over concurrency, acceptance over depth.

Knows the rows of the JSON, so a picture can be drawn of a run that is long over. matplotlib is imported when one is
drawn: it comes with the extra "bench".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frostline.errors import ConfigError

Rows = Sequence[Mapping[str, Any]]
LATENCIES = {
    "ttft_ms": "time to first token",
    "inter_token_ms": "time between tokens",
    "end_to_end_ms": "time to the last token",
}
QUANTILES = {"p50": "-", "p90": "--", "p99": ":"}


def check_plot(path: Path) -> None:
    """Raises ConfigError, before anything is measured, where no picture could be drawn in the end."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib; pip install 'frostline[bench]'") from None
    if path.suffix != ".png" or not path.parent.is_dir():
        raise ConfigError(f"--plot {path} must name a .png file in a folder that exists")


def draw(rows: Rows, path: Path, *, title: str) -> None:
    """Raises ConfigError for a place that cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    throughput, acceptance, empty, *latencies = figure.subplots(2, 3).flat
    empty.set_axis_off()
    lines = _lines(rows)
    _draw_throughput(throughput, rows, lines)
    _draw_acceptance(acceptance, lines)
    for axes, (name, words) in zip(latencies, LATENCIES.items(), strict=True):
        _draw_latency(axes, lines, name, words)
    handles, labels = throughput.get_legend_handles_labels()
    empty.legend(handles, labels, loc="upper left", title="solid p50, dashed p90, dotted p99")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {path}: {error.strerror}; name another") from None


def _lines(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """The engine's rows by mode and schedule, in order of concurrency."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: int(row["concurrency"])):
        if row["schedule"] is not None:
            lines.setdefault(f"{row['mode']} {row['schedule']}", []).append(row)
    return lines


def _draw_throughput(axes: Any, rows: Rows, lines: Mapping[str, Rows]) -> None:
    for number, (label, line) in enumerate(lines.items()):
        points = [row["concurrency"] for row in line], [row["tokens_per_s"] for row in line]
        axes.plot(*points, marker="o", color=f"C{number}", label=label)
    for row in rows:
        if row["schedule"] is None:
            label = f"{row['mode']}, {row['concurrency']} at once"
            axes.plot([row["concurrency"]], [row["tokens_per_s"]], marker="x", color="black", ls="none")
            axes.axhline(
                row["tokens_per_s"], color="grey", lw=0.8, ls="-." if row["concurrency"] > 1 else ":", label=label
            )
    axes.set(xlabel="requests at once", ylabel="tokens per second", title="throughput", ylim=(0, None))
    axes.set_xticks(sorted({row["concurrency"] for row in rows}))


def _draw_acceptance(axes: Any, lines: Mapping[str, Rows]) -> None:
    """Of each mode the row of the most requests at once; both schedules accept the same."""
    drawn = set()
    for number, line in enumerate(lines.values()):
        row = line[-1]
        rates = row.get("acceptance_per_depth")
        if rates and row["mode"] not in drawn:
            drawn.add(row["mode"])
            words = f"{row['mode']}: accept length {row['accept_length']:.2f}"
            axes.plot(range(1, len(rates) + 1), rates, marker="o", color=f"C{number}", label=words)
    axes.set(xlabel="draft depth", ylabel="accepted of those offered", title="acceptance", ylim=(0, 1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend()


def _draw_latency(axes: Any, lines: Mapping[str, Rows], name: str, words: str) -> None:
    for number, line in enumerate(lines.values()):
        for quantile, style in QUANTILES.items():
            points = [(row["concurrency"], row[name][quantile]) for row in line if row.get(name)]
            axes.plot(*zip(*points, strict=True), marker=".", ls=style, color=f"C{number}")
    axes.set(xlabel="requests at once", ylabel="milliseconds", title=words, ylim=(0, None))
    axes.set_xticks(sorted({row["concurrency"] for line in lines.values() for row in line}))
