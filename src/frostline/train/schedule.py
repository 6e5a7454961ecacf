"""How far a training run is, how large its steps are, and how it tells: by the clock or by a number of steps.

A run with minutes always ends in time, on any machine: the learning rate follows the elapsed fraction. Knows no models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from frostline.errors import ConfigError

_WARM_UP = 0.03
LOG_EVERY = 50
_LINE_EVERY = 0.02


@dataclass(kw_only=True)
class Budget:
    """Either minutes or steps. The clock runs from the making of the budget; the fraction from `start`.

    So what comes before the first step (compilation, the first kernels) costs time and does not skip the warm-up.
    """

    minutes: float | None = None
    steps: int | None = None
    clock: Callable[[], float] = time.monotonic
    _made: float = field(init=False)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ConfigError("give a training run either minutes or a number of steps")
        if (self.minutes or self.steps or 0) <= 0:
            raise ConfigError(f"minutes and steps must be positive, got {self.minutes or self.steps or 0}")
        self._made = self._started = self.clock()

    def start(self) -> None:
        """Call when the first step is about to run at full speed."""
        self._started = self.clock()

    def fraction(self, step: int) -> float:
        """0 at the start, 1 when the run is over."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.minutes is not None
        end = max(self._made + 60.0 * self.minutes, self._started + 1e-3)
        return min(1.0, (self.clock() - self._started) / (end - self._started))


def learning_rate(peak: float, fraction: float) -> float:
    """Linear warm-up over the first 3%, then linear to zero at the end."""
    return peak * min(fraction / _WARM_UP, (1.0 - fraction) / (1.0 - _WARM_UP))


class Reporter:
    """A progress bar on a terminal, lines elsewhere (every 2%, and what was watched); keeps the whole curve."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self.curve: list[dict[str, float]] = []
        self._printed = -1.0
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=console)
            self._task = self._bar.add_task(title, total=1.0)
            self._bar.start()

    def log(self, fraction: float, **numbers: float) -> None:
        self.curve.append({"fraction": round(fraction, 4), **{k: round(float(v), 5) for k, v in numbers.items()}})
        shown = "  ".join(f"{name} {value:,.4g}" for name, value in numbers.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=fraction, description=f"{self._title}: {shown}")
        elif fraction - self._printed >= _LINE_EVERY or "steps" not in numbers:
            self._printed = fraction
            self._console.print(f"{self._title} {fraction:6.1%}  {shown}", soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
