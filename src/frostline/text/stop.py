"""Stop strings, matched on text as it arrives; what could still become a stop string is held back.

Knows characters only. Pieces may split a stop string anywhere, so it is found however tokens spell it and however the
tokens are divided into runs.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop string that is complete first, character by character; the longest of those that end together."""

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first: of two that end at the same character the longer one is met first and wins.
        self._stops = sorted(stops, key=len, reverse=True)
        self.held = ""

    def feed(self, piece: str, *, match: bool = True) -> tuple[str, str | None]:
        """Text that is now certain, and the stop string that was completed, if any. match False: none may be yet.

        With a match the certain text ends where the stop string begins. Text before it has been returned already or is
        returned now: it is never part of a stop string that follows.
        """
        window = self.held + piece
        best_end, best = len(window) + 1, None
        for stop in self._stops if match else ():
            # It must end in the new piece: one that was complete when nothing matched is passed over for good.
            at = window.find(stop, max(0, len(self.held) - len(stop) + 1))
            if at >= 0 and at + len(stop) < best_end:
                best_end, best = at + len(stop), stop
        if best is not None:
            self.held = ""
            return window[: best_end - len(best)], best
        keep = self._could_begin(window)
        self.held = window[len(window) - keep :]
        return window[: len(window) - keep], None

    def flush(self) -> str:
        """The held text, when no more will come."""
        held, self.held = self.held, ""
        return held

    def _could_begin(self, window: str) -> int:
        """Length of the longest end of the window that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for size in range(min(longest - 1, len(window)), 0, -1):
            tail = window[len(window) - size :]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
