"""The expression whose result did not fit: what it was made of, by shape.

The failing expression is worked out once more on meta tensors, which have a shape and no data. Only
operators, methods of tensors and functions of torch are called, nothing of the user's.
"""

from __future__ import annotations

import ast
import operator
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from ...records.memory import Expression
from ..crash.operands import known, value_of
from ..crash.traceback_frames import TracebackEntry, calls

# The allocator asks for somewhat more than a tensor has, and torch rounds what it says.
_ROUNDING = 0.02
_BLOCK = 2 << 20
_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.USub: operator.neg, ast.Invert: operator.invert, ast.UAdd: operator.pos,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip

_FUNCTIONS = ("torch", "torch.functional", "torch.nn.functional")


class _UnknownError(Exception):
    """A part that cannot be worked out without running the user's code."""


def did_not_fit(found: BaseException, asked: float | None) -> Expression | None:
    """Expression, shapes of its parts and of its result; None where they are not known.

    Args:
        found: the out-of-memory error.
        asked: bytes of the failed allocation, which the result must have.
    """
    users = [call for call in calls(found.__traceback__) if call.is_users]
    node = users[-1].expression() if users else None
    if node is None:
        return None
    parts = [
        (ast.unparse(part), value)
        for part in _parts(node)
        if isinstance(value := _attempt(part, users[-1]), Tensor)
    ]
    result = _attempt(node, users[-1])
    if not parts or not isinstance(result, Tensor):
        return None
    size = result.numel() * result.element_size()
    if asked is not None and abs(size - asked) > _ROUNDING * size + _BLOCK:
        return None
    return Expression(
        expression=ast.unparse(node)[:120],
        made_of=tuple((text[:60], tuple(value.shape)) for text, value in parts),
        made_of_bytes=sum(_bytes(value) for _, value in parts),
        result=tuple(result.shape),
        result_dtype=str(result.dtype).removeprefix("torch."),
        result_bytes=size,
    )


def _bytes(value: Tensor) -> int:
    """Bytes of a tensor; an expanded one has fewer than its shape says."""
    return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())


def _parts(node: ast.expr) -> list[ast.expr]:
    """What an operation is applied to."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call):
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        lists = [a.elts if isinstance(a, ast.List | ast.Tuple) else [a] for a in node.args]
        return [*owner, *(part for each in lists for part in each)]
    return [node.value] if isinstance(node, ast.Subscript) else []


def _attempt(node: ast.expr, call: TracebackEntry) -> Any:
    """The value of an expression on meta tensors; None where it cannot be told."""
    try:
        with torch.no_grad(), torch.device("meta"):
            return _value(node, call)
    except Exception:  # no kernel for meta tensors, a value that is asked for, the user's code
        return None


def _value(node: ast.expr, call: TracebackEntry) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if known(held := value_of(node, call)):
        return _on_meta(held)
    if isinstance(node, ast.Tuple | ast.List):
        values = [_value(each, call) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, call), _value(node.right, call))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, call))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left, call), _value(node.comparators[0], call)
        return _OPERATORS[type(node.ops[0])](left, right)
    if isinstance(node, ast.Slice):
        ends = (node.lower, node.upper, node.step)
        return slice(*(None if end is None else _value(end, call) for end in ends))
    if isinstance(node, ast.Subscript):
        return _value(node.value, call)[_value(node.slice, call)]
    if isinstance(node, ast.Attribute) and isinstance(of := _value(node.value, call), Tensor):
        return getattr(of, node.attr)
    if isinstance(node, ast.Call):
        return _called(node, call)
    raise _UnknownError


def _called(node: ast.Call, call: TracebackEntry) -> Any:
    """The result of a method of a tensor or of a function of torch."""
    function: Any = None
    if isinstance(node.func, ast.Name) and node.func.id == "len":
        function = len
    elif isinstance(node.func, ast.Name | ast.Attribute):
        found = value_of(node.func, call)
        if not known(found) and isinstance(node.func, ast.Attribute):
            owner = _value(node.func.value, call)
            function = getattr(owner, node.func.attr) if isinstance(owner, Tensor) else None
        elif _of_torch(found):
            function = found
    if function is None:
        raise _UnknownError
    # A device that is named would be taken at its word.
    named = {
        str(keyword.arg): "meta" if keyword.arg == "device" else _value(keyword.value, call)
        for keyword in node.keywords
    }
    return function(*(_value(argument, call) for argument in node.args), **named)


def _of_torch(function: Any) -> bool:
    """Whether a function is torch's: ``rows.pop`` is built in as well, and would change a list."""
    if isinstance(function, BuiltinFunctionType):
        module = getattr(function.__self__, "__name__", "")
        return module == "torch._C._nn" or getattr(torch, function.__name__, None) is function
    return getattr(function, "__module__", "") in _FUNCTIONS


def _on_meta(held: Any) -> Any:
    """A tensor without its data; plain values as they are."""
    if isinstance(held, Tensor):
        return torch.empty_strided(
            held.shape, held.stride(), dtype=held.dtype, device=torch.device("meta")
        )
    if isinstance(held, list | tuple):
        return type(held)(map(_on_meta, held))  # pyright: ignore
    if held is None or isinstance(held, bool | int | float | str | torch.dtype):
        return held
    raise _UnknownError
