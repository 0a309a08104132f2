"""Digests by which values of two runs are compared."""

from __future__ import annotations

import io
import itertools
import pickle
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...shards import local
from .nodes import SCALARS

_HASHED = 256 << 20
_PICKLED = 32 << 20


def tensor_digest(value: Tensor) -> int:
    """A digest of the values of a tensor; of a large one, of some of them."""
    value = local(value)  # other ranks are not asked
    flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach().flatten()
    if value.numel() * value.element_size() > _HASHED:
        flat = flat[:: max(1, flat.numel() // (1 << 20))]
    if not flat.numel():
        return 0
    return array_digest(flat.cpu().contiguous().view(torch.uint8).numpy())


def array_digest(value: np.ndarray[Any, Any]) -> int:
    """The same of an array."""
    seed = zlib.crc32(f"{value.shape}{value.dtype}".encode())
    if value.nbytes > _HASHED:
        value = value.reshape(-1)[:: max(1, value.size // (1 << 20))]
    return zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data, seed) if value.size else seed


def items_digest(value: Any) -> int:
    """A digest of the first items of a long container of plain values; 0 for others."""
    some = list(itertools.islice(value, 512))
    if isinstance(value, dict):
        some = [(key, value[key]) for key in some]
    plain = all(
        type(part) in SCALARS for one in some for part in (one if type(one) is tuple else (one,))
    )
    return zlib.crc32(repr(some).encode()) if plain and not isinstance(value, set) else 0


def pickle_digest(value: Any) -> int:
    """A digest of what pickle makes of a value; an error where it cannot, or makes too much."""
    target = _Short()
    pickle.Pickler(target, 4).dump(value)
    return zlib.crc32(target.getbuffer())


class _Short(io.BytesIO):
    """Takes so much and no more."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > _PICKLED:
            raise ValueError("too large")
        return super().write(data)
