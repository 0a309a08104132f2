"""How far the tensors and plain values of two checkpoints are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.compare import Differences, differences
from holdfast.checkpoint.file import load
from holdfast.checkpoint.tree import flatten, forms, paths


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor whose bits differ: how many elements, how far at most, how far for its size.

    ``largest`` is the largest absolute difference, ``relative`` the norm of the difference over
    the norm of the first tensor; both NaN where a value is not finite.
    """

    name: str
    changed: int
    elements: int
    largest: float
    relative: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two states side by side; false when they are equal, bit for bit."""

    shapes: Differences
    tensors: tuple[TensorChange, ...]
    values: tuple[tuple[str, Any, Any], ...]
    equal: int

    def __bool__(self) -> bool:
        return bool(self.shapes or self.tensors or self.values)


def contrast(first: Path, second: Path) -> Contrast:
    """Load two checkpoints and compare everything in them."""
    one, other = load(first)[0], load(second)[0]
    tensors, others = _tensors(one), _tensors(other)
    common = [name for name, tensor in tensors.items() if _alike(tensor, others.get(name))]
    changes = [_change(name, tensors[name], others[name]) for name in common]
    found = tuple(change for change in changes if change is not None)
    return Contrast(
        differences(forms(one), forms(other)),
        tuple(sorted(found, key=lambda change: -_weight(change))),
        tuple(_unequal(dict(_leaves(one, ())), dict(_leaves(other, ())))),
        len(common) - len(found),
    )


def _tensors(tree: Any) -> dict[str, Tensor]:
    skeleton, tensors = flatten(tree)
    return dict(zip(paths(skeleton), tensors, strict=True))


def _alike(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and (one.dtype, one.shape) == (other.dtype, other.shape)


def _change(name: str, one: Tensor, other: Tensor) -> TensorChange | None:
    width = one.element_size()
    bits, others = (t.reshape(-1).view(torch.uint8).view(-1, width) for t in _plain(one, other))
    changed = int((bits != others).any(1).sum())
    if not changed:
        return None
    kind = torch.complex128 if one.is_complex() else torch.float64
    wide = one.to(kind)
    apart = (other.to(kind) - wide).abs()
    norm = float(wide.abs().norm())
    relative = float(apart.norm()) / norm if norm else math.inf
    return TensorChange(name, changed, one.numel(), float(apart.max()), relative)


def _plain(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.view_as_real(t) if t.is_complex() else t for t in tensors)


def _weight(change: TensorChange) -> float:
    return math.inf if math.isnan(change.relative) else change.relative


def _leaves(tree: Any, keys: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from _leaves(item, (*keys, key))
    elif isinstance(tree, list | tuple) and not all(isinstance(item, int) for item in tree):
        for number, item in enumerate(tree):
            yield from _leaves(item, (*keys, number))
    elif not isinstance(tree, Tensor):
        yield ".".join(map(str, keys)) or "value", tree


def _unequal(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Plain values that differ; ``repr`` makes NaN equal to itself and 1 unequal to 1.0."""
    missing = object()
    for name in {**one, **other}:
        first, second = one.get(name, missing), other.get(name, missing)
        # An array's repr leaves its middle out.
        same = [v.tolist() if hasattr(v, "tolist") else v for v in (first, second)]
        if repr(same[0]) != repr(same[1]):
            absent = "(absent)"
            yield (
                name,
                absent if first is missing else first,
                absent if second is missing else second,
            )
