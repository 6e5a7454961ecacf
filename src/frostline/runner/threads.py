"""The OpenMP threads that torch's operations leave behind on the thread that called them.

GNU's OpenMP lets threads spin between parallel regions only while the process has no more of them than cores. A team
left behind by another thread therefore sends the device thread's own helpers to sleep between any two operations: on
two cores decoding takes 2.3 to 2.8 times as long (benchmarks/cpu.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

_HARD = 2  # omp_pause_hard, OpenMP 5.0 section 2.15.4: nothing of the team is kept.


def team_release() -> Callable[[], object]:
    """A function that lets the calling thread's team go; it makes a new one when it next needs it.

    Does nothing where torch comes without GNU's OpenMP, or with one before OpenMP 5.0.
    """
    package = Path(torch.__file__).parent
    for folder in (package / "lib", package.with_name("torch.libs")):
        for path in sorted(folder.glob("libgomp*.so*")):
            pause = getattr(ctypes.CDLL(str(path)), "omp_pause_resource_all", None)
            if pause is not None:
                return lambda: pause(_HARD)
    return lambda: None
