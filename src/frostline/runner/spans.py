"""Named spans of time around the parts of a tick: NVTX ranges for a GPU profiler, nothing at all on a CPU.

Who wants to know of a tick's parts passes a `Watch`; there is no global one. Knows names only. Imports torch when a
span on a GPU is first opened, so that an engine on another device side needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Protocol

Stage = Literal["tick", "prefill", "iterate", "draft", "verify", "accept", "seed"]

_NOTHING: AbstractContextManager[None] = nullcontext()


class Watch(Protocol):
    """Opens a span around a part of a tick. step: the number of the step that the part belongs to, where it has one."""

    def __call__(self, name: str, *, step: int | None = None) -> AbstractContextManager[object]: ...


def unwatched(name: str, *, step: int | None = None) -> AbstractContextManager[object]:
    """The Watch of nobody."""
    return _NOTHING


def spec_stage_span(stage: Stage, device_type: str) -> AbstractContextManager[object]:
    """The NVTX range `frostline.STAGE` on "cuda"; elsewhere one shared object that does nothing.

    A range is on the host's clock: it covers the launches of its kernels, by which a profiler finds the kernels. It
    leaves no operation behind, so a recording of the code inside holds nothing of it: while an iteration is replayed,
    "iterate" is the range around it and the stages inside have none.
    """
    if device_type != "cuda":
        return _NOTHING
    from torch.cuda import nvtx

    range_: AbstractContextManager[object] = nvtx.range(f"frostline.{stage}")
    return range_


def nvtx_ticks(name: str, *, step: int | None = None) -> AbstractContextManager[object]:
    """The Watch of a GPU's engine: a range for each tick; the stages inside it open their own."""
    return spec_stage_span("tick", "cuda") if name == "tick" else _NOTHING


@contextmanager
def _nested(outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> Iterator[None]:
    with outer, inner:
        yield


def both(first: Watch, second: Watch) -> Watch:
    """One Watch that tells two."""

    def watch(name: str, *, step: int | None = None) -> AbstractContextManager[object]:
        return _nested(first(name, step=step), second(name, step=step))

    return watch
