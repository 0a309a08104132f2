"""What a division by zero divided by: the expression as it is written, and what it counts."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sized
from typing import Any

from ...records.crash import Divisor, DivisorPart, RaisedException
from .differences import length
from .operands import known, value_of
from .traceback_frames import TracebackEntry
from .values import described

_DIVIDES = (ast.Div, ast.FloorDiv, ast.Mod)


def divisor(error: BaseException, call: TracebackEntry) -> RaisedException:
    """The divisor of the failing operation; nothing where it stands in no expression."""
    if not isinstance(error, ZeroDivisionError):
        return RaisedException()
    node = call.expression() or call.statement()
    if isinstance(node, ast.BinOp) and isinstance(node.op, _DIVIDES):
        found = node.right
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, _DIVIDES):
        found = node.value
    else:
        return RaisedException()
    parts: dict[str, DivisorPart] = {}
    for part in ast.walk(found):
        if isinstance(part, ast.Call) and _is_len(part):
            name, value = ast.unparse(part.args[0]), value_of(part.args[0], call)
            if known(value) and (reported := _counted(name, value)):
                parts[name] = reported
        elif isinstance(part, ast.Name | ast.Attribute) and isinstance(
            value := value_of(part, call), int | float
        ):
            name = ast.unparse(part)
            parts[name] = DivisorPart(**vars(described(name, value)))
    return RaisedException(
        divisor=Divisor(
            code=ast.unparse(found),
            operator=type(node.op).__name__,
            parts=tuple(parts.values())[:4],
        )
    )


def _is_len(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1


def _counted(name: str, value: Any) -> DivisorPart | None:
    """What ``len`` of it counts: entries, or batches of a loader and why there are so many."""
    if _is_loader(value):
        return DivisorPart(
            name=name,
            type="DataLoader",
            length=len(value),
            batch_size=value.batch_size,
            drop_last=value.drop_last,
            samples=len(value.sampler) if isinstance(value.sampler, Sized) else None,
        )
    count = length(value)
    if count is None:
        return None
    return DivisorPart(name=name, type=type(value).__name__, length=count)


def _is_loader(value: object) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, data.DataLoader)
