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
_REPORTED, _FEW = 512, 16
"""Items of a long container that another process compares, and of a list that is one of them."""


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
    """A digest of the first items of a long container; 0 where none can be compared elsewhere."""
    if isinstance(value, set | frozenset):
        return 0  # in another order there
    pairs = value.items() if isinstance(value, dict) else value
    some = list(itertools.islice(pairs, _REPORTED))
    try:
        return zlib.crc32(repr([_reported(one) for one in some]).encode())
    except (UnknownError, RecursionError):
        return 0


def tensor_form(value: Tensor) -> tuple[int, int, torch.Size]:
    """What tells a tensor from itself after a change: its memory, how often written, its shape."""
    return value.data_ptr(), value._version if not value.is_inference() else 0, value.shape


class UnknownError(Exception):
    """There is something in it of which no digest is made."""


def _reported(value: Any) -> Any:
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is tuple or kind is list:
        return tuple(map(_reported, value if kind is tuple else value[:_FEW]))
    raise UnknownError


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
