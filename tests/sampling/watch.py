"""What a stretch of tensor code really ran: for tests of the hot path's rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations whose result, or its shape, the host has to wait for.
HOST_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim"}


class Watch(TorchDispatchMode):
    """Every operation that ran, and every dtype of a tensor (not a lone scalar) that came out of one."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: set[str] = set()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations.add(func.overloadpacket.__name__)
        self.dtypes |= {leaf.dtype for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.dim() > 0}
        return out
