"""Whether a state is worth keeping: its weights and optimizer state are finite.

>>> first_nonfinite(["models.m.w", "dice.x"], [torch.ones(2), torch.tensor(torch.nan)])
>>> first_nonfinite(["models.m.w"], [torch.tensor([1.0, torch.nan])])
'models.m.w'
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..shards import local

PARTS = ("models", "optimizers", "ema")
"""The parts of a state a NaN in which makes it worthless; a user's own may hold what they like."""

_CHUNK = 1 << 22


def first_nonfinite(
    names: Sequence[str], tensors: Sequence[Tensor], exempt: Collection[str] = ()
) -> str | None:
    """The name of the first tensor that poisons the state, None if there is none.

    ``exempt`` names tensors that hold infinities on purpose, such as a mask kept as a buffer.
    """
    for name, tensor in zip(names, tensors, strict=True):
        if name.partition(".")[0] in PARTS and name not in exempt and not is_finite(tensor):
            return name
    return None


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor, or this rank's part of it, is without NaN and infinity; integers are."""
    tensor = local(tensor)
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() == 1:
        # The 8-bit types have no arithmetic of their own.
        parts = tensor.reshape(-1).split(_CHUNK)
        return all(is_finite(part.to(torch.float32)) for part in parts)
    # Both ends are NaN when any element is: one pass, and no mask as large as the tensor.
    low, high = torch.aminmax(tensor)
    return math.isfinite(float(low)) and math.isfinite(float(high))
