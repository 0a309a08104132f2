"""Copies of a state in host memory, made without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def copied(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], object]]:
    """Copies in host memory, and what to wait for before they are read."""
    copies = [
        torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda)
        if t.layout is torch.strided
        else t.detach().cpu().clone()
        for t in tensors
    ]
    dense = [(c, t) for c, t in zip(copies, tensors, strict=True) if t.layout is torch.strided]
    if dense:
        torch._foreach_copy_([c for c, _ in dense], [t for _, t in dense], non_blocking=True)
    if not any(t.is_cuda for t in tensors):
        return copies, lambda: None
    # Later steps change the tensors, but on the same stream: they wait for the copies.
    done = torch.cuda.Event()
    done.record()
    return copies, done.synchronize
