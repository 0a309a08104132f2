"""Which sample was being loaded when a call failed, or is in the batch at work."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any

from ...probes.batches import Batch, plain_index, tensors
from ...probes.sample_files import file_of, innermost
from ..source.slicing import called
from .operands import value_of
from .traceback_frames import Call
from .values import Facts, first_few

_INDICES = 1024
_SHAPES = 8


def loaded(calls: Sequence[Call]) -> Facts:
    """The sample that a dataset was asked for, or the samples that were put together."""
    facts: Facts = {}
    dataset: Any = None
    for call in calls:
        held = call.frame.f_locals
        if call.function == "fetch" and "possibly_batched_index" in held:
            dataset = getattr(held.get("self"), "dataset", None)
            drawn = held["possibly_batched_index"]
            indices = list(drawn) if isinstance(drawn, list | tuple) else [drawn]
            facts["indices"] = [plain_index(index) for index in indices[:_INDICES]]
            samples = held.get("data")
            if isinstance(samples, list):
                facts |= _together(samples)
        elif call.function == "__getitem__" and "sample" not in facts:
            names = call.frame.f_code.co_varnames
            if len(names) < 2 or names[1] not in held or not ("indices" in facts or call.is_users):
                continue
            index = held[names[1]]
            owner = held.get(names[0]) if dataset is None else dataset
            facts |= _named(owner, index)
    if "sample" not in facts and facts.get("odd"):
        row = facts["odd"][0]
        if row < len(facts.get("indices", ())):
            facts |= _named(dataset, facts["indices"][row])
    return facts


def over_loader(call: Call) -> Facts:
    """Whether the loop at whose head a call is goes over a DataLoader."""
    head = call.statement()
    if not isinstance(head, ast.For) or "torch.utils.data" not in sys.modules:
        return {}
    from torch.utils.data import DataLoader

    parts = [part for part in ast.walk(head.iter) if isinstance(part, ast.expr)]
    held = any(isinstance(value_of(part, call), DataLoader) for part in parts)
    made = any(isinstance(part, ast.Call) and called(part) == "DataLoader" for part in parts)
    return {"over_loader": held or made}


def at_work(batches: Sequence[Batch], rows: Sequence[int]) -> Facts:
    """The batch that the loop was working on: indices, worker, and the files of some rows."""
    if not batches or batches[-1].indices is None:
        return {}
    batch = batches[-1]
    indices = batches[-1].indices or []
    facts: Facts = {"indices": indices[:_INDICES], "worker": batch.worker}
    dataset = batch.dataset() if batch.dataset is not None else None
    if dataset is not None:
        files = {row: _file(dataset, indices[row]) for row in rows if row < len(indices)}
        facts["files"] = {str(row): file for row, file in files.items() if file}
    return facts


def _together(samples: Sequence[Any]) -> Facts:
    """Samples that do not go together: None among them, or tensors of several shapes."""
    nones = [row for row, sample in enumerate(samples) if sample is None]
    if nones:
        return {"nones": nones[:_SHAPES], "odd": nones[:1]}
    shapes: dict[str, dict[str, list[int]]] = {}
    for row, sample in enumerate(samples):
        for path, tensor in tensors(sample):
            shape = str(tuple(int(size) for size in tensor.shape))
            shapes.setdefault(path.replace("batch", "sample", 1), {}).setdefault(shape, []).append(
                row
            )
    mixed = {path: each for path, each in shapes.items() if len(each) > 1}
    if not mixed:
        return {}
    path, each = next(iter(mixed.items()))
    common = max(each.values(), key=len)
    odd = [row for rows in each.values() if rows is not common for row in rows]
    # Where every shape is different nobody is the odd one.
    return {
        "field": path,
        "shapes": [
            [shape, len(rows), rows[0]] for shape, rows in first_few(iter(each.items()), _SHAPES)
        ],
        "odd": sorted(odd)[:_SHAPES] if len(common) > 1 else [],
    }


def _named(dataset: Any, index: Any) -> Facts:
    facts: Facts = {"sample": plain_index(index)}
    if file := _file(dataset, index):
        facts["sample_file"] = file
    return facts


def _file(dataset: Any, index: Any) -> str:
    try:
        return file_of(*innermost(dataset, index))
    except (IndexError, TypeError, ValueError, AttributeError):
        return ""
