"""A recorder of what the host and the device side did when: a Chrome trace, to be seen in Perfetto or chrome://tracing.

Whoever wants one makes it and passes it on; an engine without one records nothing. Knows names, threads and times.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Span:
    """One part of a tick. start, end: seconds of one clock that all threads share. thread: who did it."""

    name: str
    step: int | None
    thread: str
    start: float
    end: float


class Timeline:
    """Collects spans from any thread; `span` is the Watch to pass on.

    The loop's spans are tick, schedule, launch, collect and update; a step keeps its number through all of them. On a
    CPU under schedule="overlap" the span "device" is a step's work on the device side's own thread.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @property
    def spans(self) -> tuple[Span, ...]:
        """In the order in which they ended."""
        return tuple(self._spans)

    @contextmanager
    def span(self, name: str, *, step: int | None = None) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            thread = threading.current_thread().name
            # One append is one operation of the interpreter: no lock is needed between the threads.
            self._spans.append(Span(name=name, step=step, thread=thread, start=start, end=end))

    def as_json(self) -> dict[str, Any]:
        """The trace in Chrome's format: complete events, microseconds from the first span on, one track per thread."""
        spans = sorted(self._spans, key=lambda span: (span.start, -span.end))
        threads = list(dict.fromkeys(span.thread for span in spans))
        zero = spans[0].start if spans else 0.0
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": thread}}
            for number, thread in enumerate(threads, start=1)
        ]
        for span in spans:
            event = {
                "ph": "X",
                "name": span.name,
                "cat": "frostline",
                "pid": 1,
                "tid": threads.index(span.thread) + 1,
                "ts": round((span.start - zero) * 1e6, 3),
                "dur": round((span.end - span.start) * 1e6, 3),
            }
            events.append(event if span.step is None else {**event, "args": {"step": span.step}})
        return {"displayTimeUnit": "ms", "traceEvents": events}

    def write(self, path: Path) -> None:
        """Raises ConfigError for a place that cannot be written."""
        try:
            path.write_text(json.dumps(self.as_json()) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the timeline cannot be written to {path}: {error.strerror}; name another") from None
