"""One thread per test process and no network: two workers share two cores, and a test that reaches a hub is a bug."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Read by the OpenMP and BLAS runtimes when torch is first imported, so they are set before any test module is.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when Triton is first imported, by whomever: without a GPU its kernels are interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Holds where torch was imported before this file; costs nothing where it is not imported at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
