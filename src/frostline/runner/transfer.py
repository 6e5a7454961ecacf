"""Host values to the device and results back, so that the host waits for the device in one place only.

On a GPU both ways go through pinned memory and never block: torch's pinned allocator is the ring, since it hands a
block out again only after the copies that used it are done. `Results.read` is the one wait. On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_device(values: Sequence[float], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of host values on the device; the host goes on before it has arrived."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


class Results:
    """Device tensors on their way to the host: copied when this is made, behind all work queued before.

    The tensors may be overwritten by later work; on a CPU they must not be.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        self._arrived: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._tensors = tuple(_pinned_copy(tensor) for tensor in tensors)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def read(self) -> list[Any]:
        """Wait for these tensors, not for what was queued after them; each as nested lists."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.tolist() for tensor in self._tensors]


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
