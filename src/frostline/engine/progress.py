"""A bar for many prompts, on stderr. Knows how many requests have ended and how many tokens they got."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from frostline.engine.request import Request


@contextmanager
def progress(total: int, *, shown: bool) -> Iterator[Callable[[Request], None]]:
    """Gives a callback for each finished request; it moves the bar, with the tokens made so far and their rate."""
    if not shown:
        yield lambda request: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task, tokens, start = bar.add_task("", total=total), 0, time.perf_counter()

        def advance(request: Request) -> None:
            nonlocal tokens
            tokens += len(request.output_ids)
            rate = tokens / (time.perf_counter() - start)
            bar.update(task, advance=1, description=f"{tokens} tokens, {rate:.0f} tokens/s")

        yield advance
