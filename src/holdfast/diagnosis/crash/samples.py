"""Which sample was being loaded when a call failed, or is in the batch at work."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any

from ...probes.batches import Batch, plain_index, tensors
from ...probes.sample_files import file_of, innermost
from ...records.crash import RaisedException
from ...source.syntax import called
from .operands import value_of
from .traceback_frames import TracebackEntry
from .values import first_few

_INDICES = 1024
_SHAPES = 8


def loaded(calls: Sequence[TracebackEntry]) -> RaisedException:
    """The sample that a dataset was asked for, or the samples that were put together."""
    found = RaisedException()
    dataset: Any = None
    named = False
    for call in calls:
        held = call.frame.f_locals
        if call.function == "fetch" and "possibly_batched_index" in held:
            dataset = getattr(held.get("self"), "dataset", None)
            drawn = held["possibly_batched_index"]
            indices = list(drawn) if isinstance(drawn, list | tuple) else [drawn]
            found = found.replace(indices=tuple(map(plain_index, indices[:_INDICES])))
            samples = held.get("data")
            if isinstance(samples, list):
                found = _together(samples, found)
        elif call.function == "__getitem__" and not named:
            names = call.frame.f_code.co_varnames
            known = found.indices is not None or call.is_users
            if len(names) < 2 or names[1] not in held or not known:
                continue
            owner = held.get(names[0]) if dataset is None else dataset
            found, named = _named(owner, held[names[1]], found), True
    row = found.odd[0] if found.odd and not named else -1
    if 0 <= row < len(found.indices or ()):
        found = _named(dataset, (found.indices or ())[row], found)
    return found


def over_loader(call: TracebackEntry) -> RaisedException:
    """Whether the loop at whose head a call is goes over a DataLoader."""
    head = call.statement()
    if not isinstance(head, ast.For) or "torch.utils.data" not in sys.modules:
        return RaisedException()
    from torch.utils.data import DataLoader

    parts = [part for part in ast.walk(head.iter) if isinstance(part, ast.expr)]
    held = any(isinstance(value_of(part, call), DataLoader) for part in parts)
    made = any(isinstance(part, ast.Call) and called(part) == "DataLoader" for part in parts)
    return RaisedException(over_loader=held or made)


def at_work(batches: Sequence[Batch], rows: Sequence[int]) -> RaisedException:
    """The batch that the loop was working on: indices, worker, and the files of some rows."""
    if not batches or batches[-1].indices is None:
        return RaisedException()
    batch = batches[-1]
    indices = batches[-1].indices or []
    dataset = batch.dataset() if batch.dataset is not None else None
    files: dict[str, str] | None = None
    if dataset is not None:
        found = {row: _file(dataset, indices[row]) for row in rows if row < len(indices)}
        files = {str(row): file for row, file in found.items() if file}
    return RaisedException(indices=tuple(indices[:_INDICES]), worker=batch.worker, files=files)


def _together(samples: Sequence[Any], found: RaisedException) -> RaisedException:
    """Samples that do not go together: None among them, or tensors of several shapes."""
    nones = tuple(row for row, sample in enumerate(samples) if sample is None)
    if nones:
        return found.replace(nones=nones[:_SHAPES], odd=nones[:1])
    shapes: dict[str, dict[str, list[int]]] = {}
    for row, sample in enumerate(samples):
        for path, tensor in tensors(sample):
            shape = str(tuple(int(size) for size in tensor.shape))
            shapes.setdefault(path.replace("batch", "sample", 1), {}).setdefault(shape, []).append(
                row
            )
    mixed = {path: each for path, each in shapes.items() if len(each) > 1}
    if not mixed:
        return found
    path, each = next(iter(mixed.items()))
    common = max(each.values(), key=len)
    odd = [row for rows in each.values() if rows is not common for row in rows]
    # Where every shape is different nobody is the odd one.
    return found.replace(
        field=path,
        shapes=tuple(
            (shape, len(rows), rows[0]) for shape, rows in first_few(iter(each.items()), _SHAPES)
        ),
        odd=tuple(sorted(odd)[:_SHAPES]) if len(common) > 1 else (),
    )


def _named(dataset: Any, index: Any, found: RaisedException) -> RaisedException:
    file = _file(dataset, index) or None
    return found.replace(sample=plain_index(index), sample_file=file or found.sample_file)


def _file(dataset: Any, index: Any) -> str:
    try:
        return file_of(*innermost(dataset, index))
    except (IndexError, TypeError, ValueError, AttributeError):
        return ""
