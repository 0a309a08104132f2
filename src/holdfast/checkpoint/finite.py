"""Whether a state is worth keeping: its weights and optimizer state are finite.

>>> first_nonfinite(["models.m.w", "dice.x"], [torch.ones(2), torch.tensor(torch.nan)])
>>> first_nonfinite(["models.m.w"], [torch.tensor([1.0, torch.nan])])
'models.m.w'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..shards import local

PARTS = ("models", "optimizers", "ema")
"""The parts of a state a NaN in which makes it worthless; a user's own may hold what they like."""

NOTHING: Mapping[str, Tensor | None] = {}

_CHUNK = 1 << 22


def first_nonfinite(
    names: Sequence[str], tensors: Sequence[Tensor], meant: Mapping[str, Tensor | None] = NOTHING
) -> str | None:
    """The name of the first tensor that poisons the state, None if there is none.

    ``meant`` has the ``nonfinite_places`` of tensors that hold such values on purpose, as a mask
    kept as a buffer does; None for a tensor that may hold what it likes.
    """
    for name, tensor in zip(names, tensors, strict=True):
        if name.partition(".")[0] not in PARTS or is_finite(tensor):
            continue
        known = meant.get(name)
        if name not in meant or (known is not None and not _are_at(tensor, known)):
            return name
    return None


def nonfinite_places(tensor: Tensor) -> Tensor:
    """Where a tensor, or this rank's part of it, holds NaN (1), infinity (2) and -infinity (3)."""
    tensor = local(tensor).detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() == 1:
        tensor = tensor.to(torch.float32)  # the 8-bit types have no arithmetic of their own
    places = tensor.isnan().to(torch.int8)
    return places + 2 * tensor.isposinf() + 3 * tensor.isneginf()


def _are_at(tensor: Tensor, known: Tensor) -> bool:
    places = nonfinite_places(tensor)
    if places.shape != known.shape:
        return False
    # A running minimum that begins at infinity has fewer of them with time.
    return bool(((places == 0) | (places == known.to(places.device))).all())


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
