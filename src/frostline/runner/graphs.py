"""Capture of the iteration: one recorded graph per shape, replayed without Python.

The iteration has fixed shapes per (batch, plan, bound) and reads and writes only row-indexed state, so a recording for
a shape is right for every batch of that shape. On a GPU a recording is a CUDA graph, on a CPU a TorchScript trace;
without one, a step spends much of its time in the interpreter. Knows nothing of what it records.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
StateFunction = Callable[..., Tensors]

_TRACED_BOUND = 128
_LEAST_CUDA_BOUND = 256


class Graphs(ABC):
    """Recordings by key, most recently used kept.

    capture_after: uses of a key before it is recorded. limit: recordings kept.
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

        `key` fixes everything else that the function's work depends on. All tensors that it writes are in `state`, the
        same ones for a key at every call. What comes back is good until the next call.
        """
        if key not in self._recorded:
            self._uses[key] += 1
            if self._uses[key] <= self._after:
                return function(rows_B, *state)
            # Recorded over padding rows, whose state stays zero: recording runs the function and must change nothing.
            self._recorded[key] = self._record(function, torch.zeros_like(rows_B), state)
            del self._uses[key]
            if len(self._recorded) > self._limit:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        return self._replay(self._recorded[key], rows_B, state)

    @abstractmethod
    def batch(self, rows: int) -> int:
        """The batch size to run `rows` rows in; the rest is padding. Few sizes make few recordings."""

    @abstractmethod
    def bound(self, kv_rows: int) -> int:
        """The bound on KV rows to run under, at least `kv_rows`: a growing context then needs few recordings."""

    @abstractmethod
    def _record(self, function: StateFunction, padding_B: Tensor, state: Tensors) -> Any: ...

    @abstractmethod
    def _replay(self, recording: Any, rows_B: Tensor, state: Tensors) -> Tensors: ...


class TracedGraphs(Graphs):
    """TorchScript traces, for a CPU: a recording takes 0.1 to 0.5 s and saves 2 to 3 ms a use of a small model.

    What a traced function reaches by other ways than its arguments is a constant to the recorder, and writes to it are
    dropped; hence `state`. Rows cost time on a CPU, so none are added.
    """

    def batch(self, rows: int) -> int:
        return rows

    def bound(self, kv_rows: int) -> int:
        return _round_up(kv_rows, _TRACED_BOUND)

    def _record(self, function: StateFunction, padding_B: Tensor, state: Tensors) -> Any:
        with warnings.catch_warnings():
            # The tracer warns of every host value that becomes part of the recording; here they are the key.
            warnings.simplefilter("ignore")
            example = (padding_B, *state)
            return torch.jit.trace(function, example, check_trace=False)  # type: ignore[no-untyped-call]

    def _replay(self, recording: Any, rows_B: Tensor, state: Tensors) -> Tensors:
        # Unoptimised: the optimiser's passes double the cost of a recording and were measured to save nothing.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            outputs: Tensors = recording(rows_B, *state)
        return outputs


class CudaGraphs(Graphs):
    """CUDA graphs over the addresses of `state`, sharing one memory pool: they are replayed one after another.

    A recording reads its rows from a tensor of its own, and its outputs lie where the next replay may write: the caller
    copies them before that, on the same stream.
    """

    def __init__(self, *, capture_after: int, limit: int = 64) -> None:
        super().__init__(capture_after=capture_after, limit=limit)
        self._pool = torch.cuda.graph_pool_handle()

    def batch(self, rows: int) -> int:
        """1, 2, 4 or a multiple of 8: a GPU takes about as long for eight rows as for one."""
        return 1 << (rows - 1).bit_length() if rows <= 8 else _round_up(rows, 8)

    def bound(self, kv_rows: int) -> int:
        return max(_LEAST_CUDA_BOUND, 1 << (kv_rows - 1).bit_length())

    def _record(self, function: StateFunction, padding_B: Tensor, state: Tensors) -> Any:
        side = torch.cuda.Stream(padding_B.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # Libraries set themselves up at a first call, which a capture must not contain.
            function(padding_B, *state)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function(padding_B, *state)
        return graph, padding_B, outputs

    def _replay(self, recording: Any, rows_B: Tensor, state: Tensors) -> Tensors:
        graph, own_B, outputs = recording
        own_B.copy_(rows_B)
        graph.replay()
        return outputs  # type: ignore[no-any-return]


def graphs_for(device: torch.device, capture_after: int | Literal["auto"]) -> Graphs:
    """The kind that the device has. "auto" records once the recording's cost is likely to come back."""
    if device.type == "cuda":
        return CudaGraphs(capture_after=2 if capture_after == "auto" else capture_after)
    return TracedGraphs(capture_after=64 if capture_after == "auto" else capture_after)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
