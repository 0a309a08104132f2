"""A limit on the memory of tensors, so that a CPU runs out of it as a GPU does.

Every operation inside the block is counted: the storages it made and that are still alive. One
that would pass the limit raises ``torch.OutOfMemoryError``, in forward and in backward.

    with MemoryBudget(64 << 20) as budget:
        train()
    print(budget.peak)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryBudget(TorchDispatchMode):
    """Count the bytes of live tensors; beyond ``limit`` an operation fails."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self.limit = limit
        self.peak = 0
        self.failures = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._sum = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._count(tensor)
        return result

    def live(self) -> int:
        """Bytes that are alive now."""
        self._live = {k: one for k, one in self._live.items() if not one[0].expired()}
        self._sum = sum(size for _, size in self._live.values())
        return self._sum

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        known = self._live.get(key)
        if known is not None and not known[0].expired():
            return
        self._live[key] = StorageWeakRef(storage), size
        self._sum += size
        if self._sum > min(self.limit, self.peak):
            if self.live() > self.limit:
                del self._live[key]
                self._sum -= size
                self.failures += 1
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB "
                    "(simulated by a budget)"
                )
            self.peak = max(self.peak, self._sum)
