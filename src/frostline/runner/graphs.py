"""Capture of the iteration on CPU: one recorded graph per shape, replayed without Python.

What a CUDA graph is on a GPU, a TorchScript trace is here: the iteration has fixed shapes per (batch, plan, bound) and
reads and writes only row-indexed state, so a recording for a shape is right for every batch of that shape. Without it a
CPU step of a small model spends a third of its time in the interpreter. Knows nothing of what it records.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
StateFunction = Callable[..., Tensors]


class Graphs:
    """Recordings by key, most recently used kept.

    capture_after: uses of a key before it is recorded; a recording takes 0.1 to 0.5 s and saves 2 to 3 ms a use, and a
    batch that shrinks passes through many sizes once. limit: recordings kept.
    """

    def __init__(self, *, capture_after: int, limit: int = 64) -> None:
        self._after, self._limit = capture_after, limit
        self._uses: Counter[Hashable] = Counter()
        self._recorded: OrderedDict[Hashable, Any] = OrderedDict()

    @property
    def captured(self) -> int:
        """Recordings held."""
        return len(self._recorded)

    def run(self, key: Hashable, function: StateFunction, rows_B: Tensor, state: Tensors) -> Tensors:
        """function(rows_B, *state), from the recording of `key` where there is one.

        `key` fixes everything else that the function's work depends on. All tensors that it writes are in `state`: what
        a recorded function reaches by other ways is a constant to the recorder, and writes to it would be dropped.
        """
        if key not in self._recorded:
            self._uses[key] += 1
            if self._uses[key] <= self._after:
                return function(rows_B, *state)
            self._record(key, function, rows_B, state)
        self._recorded.move_to_end(key)
        # Unoptimised: the optimiser's passes double the cost of a recording and were measured to save nothing.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            outputs: Tensors = self._recorded[key](rows_B, *state)
        return outputs

    def _record(self, key: Hashable, function: StateFunction, rows_B: Tensor, state: Tensors) -> None:
        # Recorded over padding rows, whose state stays zero: recording runs the function once and must change nothing.
        with warnings.catch_warnings():
            # The tracer warns of every host value that becomes part of the recording; here they are the key.
            warnings.simplefilter("ignore")
            example = (torch.zeros_like(rows_B), *state)
            recorded = torch.jit.trace(function, example, check_trace=False)  # type: ignore[no-untyped-call]
        self._recorded[key] = recorded
        del self._uses[key]
        if len(self._recorded) > self._limit:
            self._recorded.popitem(last=False)
