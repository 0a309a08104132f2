"""Differences in the failing expression, ``len(x) - size``, with the values of both sides."""

from __future__ import annotations

import ast
from typing import Any, cast

from ...records.crash import RaisedException, Subtraction
from .operands import known, value_of
from .traceback_frames import TracebackEntry
from .values import is_tensor

# Their length is read without running code of the user's.
_PLAIN = (list, tuple, dict, set, frozenset, str, bytes, range)
_NAMED = 4


def differences(calls: list[TracebackEntry]) -> RaisedException:
    """Both sides of every subtraction of numbers on the user's line."""
    call = next((each for each in reversed(calls) if each.is_users), None)
    node = (call.expression() or call.statement()) if call is not None else None
    if call is None or node is None:
        return RaisedException()
    found: list[Subtraction] = []
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub):
            left, right = _number(part.left, call), _number(part.right, call)
            if left is not None and right is not None:
                names = ast.unparse(part.left), ast.unparse(part.right)
                found.append(Subtraction(names=names, values=(left, right)))
    return RaisedException(differences=tuple(found[:_NAMED]) or None)


def length(value: object) -> int | None:
    """What ``len`` says of it; None where code of the user's would say it."""
    if type(value) in _PLAIN:
        return len(cast("list[Any]", value))
    if is_tensor(value) or (type(value).__module__ == "numpy" and hasattr(value, "shape")):
        shape = cast("Any", value).shape
        return int(shape[0]) if len(shape) else None
    return None


def _number(node: ast.expr, call: TracebackEntry) -> int | float | None:
    """A number, a length or a size of a tensor."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Call(func=ast.Name(id="len"), args=[given]):
            held = value_of(given, call)
            return length(held) if known(held) else None
        case (
            ast.Call(
                func=ast.Attribute(value=owner, attr="size"), args=[ast.Constant(value=int() as at)]
            )
            | ast.Subscript(
                value=ast.Attribute(value=owner, attr="shape"),
                slice=ast.Constant(value=int() as at),
            )
        ):
            return _size(value_of(owner, call), at)
        case ast.Subscript(
            value=ast.Attribute(value=owner, attr="shape"),
            slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as at)),
        ):
            return _size(value_of(owner, call), -at)
        case _:
            held = value_of(node, call)
            plain = known(held) and type(held) in (int, float)
            return held if plain else None


def _size(owner: Any, at: int) -> int | None:
    shape = getattr(owner, "shape", None) if length(owner) is not None else None
    return int(shape[at]) if shape is not None and -len(shape) <= at < len(shape) else None
