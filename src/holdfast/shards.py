"""Tensors that are spread over ranks (``DTensor``): the part of them that this rank holds.

Almost any operation on such a tensor may talk to the other ranks, which need not be doing the same
at that moment. Whoever measures, copies or restores goes to the part instead. Nothing is imported
for it: a script without such tensors pays one look for an attribute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds only a part of a tensor, or one of several copies."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: Tensor) -> Tensor:
    """The part that this rank holds, sharing its memory; an ordinary tensor is its own part."""
    part: Any = getattr(tensor, "_local_tensor", tensor)
    # The result of a collective that is still under way: the stream waits for it, not the host.
    return part.wait() if hasattr(part, "trigger_wait") else part


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """``part`` as the part of a tensor that is spread as this one; itself where it is not."""
    if not is_sharded(tensor):
        return part
    spread: Any = tensor
    return type(spread)(part, spread._spec, requires_grad=False)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy with memory of its own on a device, spread as before."""
    return like(tensor, local(tensor).detach().to(device, copy=True))
