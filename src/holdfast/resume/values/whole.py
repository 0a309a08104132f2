"""A digest of all that a long container holds, by which one process compares it with itself.

``marshal`` writes plain values of any depth at some ten million a second. What it does not know
(tensors, arrays, objects of the user's own) is asked one by one, for what tells it from itself
after a change.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import marshal
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from ..refusal import RefusedError
from .digests import UnknownError, array_digest, tensor_form
from .nodes import SCALARS, of_user, shown

_VERSION = 2
"""Of marshal: one that writes values alone; later ones tell how often an object is used, too."""
_TEXT = 512 << 20
_PART = 8 << 20
"""Bytes that are written in all, and about so many at a time."""


def whole_digest(value: Any, path: str) -> int | None:
    """The digest of a container; None where something is in it that has none.

    What many items share is written with each of them where marshal knows it, so that a small
    container can mean much text: beyond some size it is refused.
    """
    digest, left, count, forms = len(value), _TEXT, 1, _Forms()
    items = iter(value.items() if isinstance(value, dict) else value)
    try:
        while part := tuple(itertools.islice(items, count)):
            text = forms.written(part)
            digest = zlib.crc32(text, digest)
            left -= len(text)
            if left < 0:
                raise RefusedError(f"{shown(path)} holds too much to be saved")
            count = min(4 * count, max(1, _PART * count // len(text)))
    except (UnknownError, RecursionError):
        return None
    return digest


class _Forms:
    """What tells values from themselves after a change, as text."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        """Objects that were asked, by id: once is enough."""

    def written(self, part: tuple[Any, ...]) -> bytes:
        """The text of some items."""
        try:
            return marshal.dumps(part, _VERSION)
        except ValueError:
            return marshal.dumps(self._all(part), _VERSION)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [one if type(one) in SCALARS else self._one(one) for one in values]

    def _one(self, value: Any) -> Any:
        met = self._met.get(id(value))
        if met is not None:
            return met
        self._met[id(value)] = len(self._met)
        kind = type(value)
        if kind is Tensor:
            place, version, shape = tensor_form(value)
            return place, version, tuple(shape)
        if kind is tuple or kind is list:
            return self._all(value)
        if kind is np.ndarray and value.dtype.kind in "biufc":
            return array_digest(value)
        if kind is dict:
            return self._pairs(value)
        if _is_record(kind):
            return self._pairs(vars(value))
        raise UnknownError

    def _pairs(self, values: dict[Any, Any]) -> list[Any]:
        return [self._all(values), self._all(values.values())]


@functools.lru_cache(maxsize=256)
def _is_record(kind: type) -> bool:
    """Whether objects of a class of the user's own are what their attributes are."""
    own = kind.__bases__ == (object,) and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
    return own and kind.__reduce_ex__ is object.__reduce_ex__ and of_user(kind)
