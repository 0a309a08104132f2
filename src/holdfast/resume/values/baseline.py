"""What was there before the first step: a checkpoint only names it while nobody changes it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import iterators
from ..refusal import RefusedError
from .digests import array_digest, pickle_digest, tensor_digest, tensor_form
from .nodes import KIND, Node, SeenObjects, class_name, shown
from .whole import whole_digest

_SHORT = 1 << 20
"""Bytes of a tensor that are read with every pass."""
_Form = tuple[weakref.ref[Tensor], tuple[int, int, torch.Size]]
"""The tensor too: the memory of one that is gone may be another's."""


@dataclass(slots=True)
class StartValues:
    """What was there before the first step, by its path: it is made again if it has not changed."""

    tensors: dict[str, _Form] = field(default_factory=dict[str, "_Form"])
    arrays: dict[str, int] = field(default_factory=dict[str, int])
    held: dict[str, int] = field(default_factory=dict[str, int])
    containers: dict[str, int | None] = field(default_factory=dict[str, int | None])
    shapes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of iterators: a resumed script has made them by itself."""
    digests: dict[str, int] = field(default_factory=dict[str, int])
    """Of tensors that have not changed, from the first checkpoint on."""
    contents: dict[str, int] = field(default_factory=dict[str, int])
    """Of tensors that are compared by what they hold: torch does not count what is written through
    ``data`` or an array that shares their memory."""
    left: int = 256 << 20
    """Bytes of others that may be compared so."""


class Comparing:
    """Compares values with the baseline, for one look.

    Args:
        baseline: what was there before the first step.
        seen: what the look has met.
        first: this look makes the baseline.
        digests: tensors are named with a digest of what they hold.
    """

    def __init__(
        self, baseline: StartValues, seen: SeenObjects, *, first: bool, digests: bool
    ) -> None:
        self._baseline, self._seen, self._first, self._digests = baseline, seen, first, digests

    def tensor(self, value: Tensor, path: str) -> Node | None:
        """The node of a tensor that a resumed script makes again; None if it has changed."""
        form, known = tensor_form(value), self._baseline
        if self._first:
            known.tensors[path] = weakref.ref(value), form
            if value.nbytes <= known.left:
                known.left -= value.nbytes
                known.contents[path] = tensor_digest(value)
        before = known.tensors.get(path)
        if before is None or before[0]() is not value or before[1] != form:
            return None
        read = path in known.contents and (self._digests or value.nbytes <= _SHORT)
        if read and known.contents[path] != tensor_digest(value):
            return None
        return {KIND: "made", "c": "Tensor", "h": self._digest(value, path)}

    def _digest(self, value: Tensor, path: str) -> int:
        """The digest of a tensor that a resumed script makes again; 0 where none is taken.

        The first look needs none: what a checkpoint finds in the same memory, unchanged, is what
        was there then. Most runs of a second end without having to read their data for this.
        """
        if not self._digests or self._first:
            return 0
        known = self._baseline.digests
        if path not in known:
            known[path] = tensor_digest(value)
        return known[path]

    def array(self, value: np.ndarray[Any, Any], path: str) -> Node | None:
        """The same of an array."""
        digest = array_digest(value)
        if self._first:
            self._baseline.arrays[path] = digest
        if self._baseline.arrays.get(path) != digest:
            return None
        return {KIND: "made", "c": "ndarray", "h": digest}

    def container(self, value: Any, path: str) -> bool:
        """Whether a resumed script makes all that a long container holds again."""
        digest = whole_digest(value, path)
        if self._first:
            self._baseline.containers[path] = digest
        return digest is not None and self._baseline.containers.get(path) == digest

    def shape(self, place: Any, path: str) -> bool:
        """Whether a resumed script has an iterator like this, at the same ``yield``."""
        found = iterators.shape(place)
        if self._first:
            self._baseline.shapes[path] = found
        return self._baseline.shapes.get(path) == found

    def held(self, value: Any, path: str) -> Node:
        """Something that is only compared: it must be what it was before the first step."""
        try:
            digest = pickle_digest(value)
        except Exception:
            text = f"is a {class_name(type(value))}, which cannot be saved"
            raise RefusedError(f"{shown(path)} {text}") from None
        if self._first:
            self._baseline.held[path] = digest
        before = self._baseline.held.get(path)
        if before is not None and before != digest:
            text = f"is a {class_name(type(value))}; it changes and cannot be saved"
            raise RefusedError(f"{shown(path)} {text}")
        self._seen.note(value, path)
        return {KIND: "held", "c": class_name(type(value)), "h": digest}
