"""Pairs whose embeddings are there already: the layouts they come in, and what they must be.

Shapes: N pairs, E teacher width.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import MappedTensors

from .tensor_files import read_tensors

LAYOUTS = (
    ("input_embeddings", "target_embeddings"),
    ("question_embeddings", "answer_embeddings"),
    ("x", "y"),
)
"""Names of the two tensors; the last is what ``holdfast.training.write_tensors`` is given here."""

SMALLEST, LARGEST = 0.01, 100.0
"""Norms that an embedding can have."""

_CHUNK = 4096  # rows looked at together: a mapped set may be larger than memory
_UNIT = 2e-3  # rows this close to length 1 are left as they are; float16 rounds by less
_NAMED = 8  # bad rows named in an error


class Embedded(NamedTuple):
    """Two tensors of equal shape, row by row a pair."""

    x_NE: Tensor
    y_NE: Tensor


def read_precomputed(path: str | os.PathLike[str]) -> Embedded:
    """Read and check embeddings of pairs.

    Args:
        path: a ``.safetensors`` or torch file that holds two tensors named as in ``LAYOUTS`` or
            one plain tensor, used as both; or a folder of mapped tensors, which is not read into
            memory.
    """
    found = _mapped(Path(path)) if Path(path).is_dir() else read_tensors(path)
    x_NE, y_NE = _chosen(found, path)
    check_embeddings(x_NE, f"{path}: inputs")
    check_embeddings(y_NE, f"{path}: targets")
    if x_NE.shape != y_NE.shape:
        raise HoldfastError(
            f"{path}: inputs {list(x_NE.shape)} and targets {list(y_NE.shape)}; "
            "both need the same rows and the same width"
        )
    return Embedded(x_NE, y_NE)


def check_embeddings(x_NE: Tensor, where: str) -> None:
    """Refuse what is not a table of finite vectors of sensible length; names the rows.

    Args:
        x_NE: on the CPU.
        where: begins the error.
    """
    if x_NE.ndim != 2 or not x_NE.is_floating_point() or not x_NE.numel():
        raise HoldfastError(
            f"{where}: {str(x_NE.dtype).removeprefix('torch.')} of shape {list(x_NE.shape)}; "
            "embeddings are numbers with a point, one row per text"
        )
    bad: list[int] = []
    for first, norms_N in row_norms(x_NE):
        fits_N = (norms_N >= SMALLEST) & (norms_N <= LARGEST)  # false for NaN too
        bad += (first + (~fits_N).nonzero().flatten()).tolist()
    if bad:
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        rows = ", ".join(map(str, bad[:_NAMED])) + more
        raise HoldfastError(
            f"{where}: {len(bad)} of {len(x_NE)} rows are not finite or have a norm outside "
            f"{SMALLEST} to {LARGEST:g}: {rows}; remove or repair them"
        )


def unit_rows(x_NE: Tensor) -> Tensor:
    """Rows of length 1; the tensor itself, mapped or not, where they are that already."""
    if all(bool(((norms_N - 1).abs() <= _UNIT).all()) for _, norms_N in row_norms(x_NE)):
        return x_NE
    return torch.nn.functional.normalize(x_NE.float(), dim=1)


def row_norms(x_NE: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Lengths of the rows, some at a time, each time with the number of the first."""
    for first in range(0, len(x_NE), _CHUNK):
        yield first, x_NE[first : first + _CHUNK].float().norm(dim=1)


def _mapped(folder: Path) -> dict[str, Tensor]:
    found = MappedTensors(folder)
    return {key: found.mapped(key) for key in found.kinds}


def _chosen(found: Any, path: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    if isinstance(found, Tensor):
        return found, found
    named = dict(found) if isinstance(found, Mapping) else {}
    for first, second in LAYOUTS:
        pair = named.get(first), named.get(second)
        if isinstance(pair[0], Tensor) and isinstance(pair[1], Tensor):
            return pair[0], pair[1]
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    if len(named) == len(tensors) == 1:
        return tensors[0], tensors[0]
    held = ", ".join(map(str, named)) or type(found).__name__
    known = " or ".join(f"{first} and {second}" for first, second in LAYOUTS)
    raise HoldfastError(f"{path}: holds {held}; it has to hold {known}, or one tensor")
