"""The ``torch.where`` trap: values masked in forward become NaN in backward."""

from __future__ import annotations

import ast
from typing import NamedTuple

from .cause import Cause
from .prescription import Change, only, places
from .sites import called
from .source import Edit, Statement

TRAP = (
    "torch.where and masked_fill still differentiate masked values, and 0 * inf is NaN: make the "
    "argument safe before the function, not the result after it"
)

# An argument at which the function and its derivative are finite.
_SAFE = {"acos": "0", "asin": "0", "atanh": "0", "erfinv": "0", "logit": "0.5", "acosh": "2"}
_COMPARISONS = {"eq", "ne", "gt", "ge", "lt", "le", "isfinite", "isnan", "abs", "bool"}


class _Mask(NamedTuple):
    """The condition under which a result is used, or with ``used`` false, not used."""

    condition: ast.expr
    used: bool
    fill: bool


def where_trap(cause: Cause, operand: int = 0) -> Change | None:
    """Make the argument safe before the function when a mask picks from its result.

    ``where(m, f(x), 0)`` differentiates ``f`` at masked values too, and 0 * inf is NaN.
    """
    code, site = cause.statement, only(places(cause))
    if code is None or site is None or len(site.operands) <= operand:
        return None
    if site.inplace and operand == 0:
        return None
    branch: ast.AST = site.node
    for above in code.ancestors(site.node):
        mask = _mask(code, above, branch)
        if mask:
            argument, safe = site.operands[operand], _SAFE.get(cause.name, "1")
            edits = _made_safe(code, argument, safe, mask, direct=branch is site.node)
            return Change(tuple(edits), site.node) if edits else None
        # Through other functions the shape, and with it the mask, may be another.
        if not isinstance(above, ast.BinOp | ast.UnaryOp):
            return None
        branch = above
    return None


def _mask(code: Statement, node: ast.AST, branch: ast.AST) -> _Mask | None:
    """The mask that ``node`` puts on ``branch``."""
    if isinstance(node, ast.Attribute):
        node = code.parents.get(node, node)  # branch.where(...), branch.masked_fill(...)
    where = called(node, "where")
    if where and len(where.operands) == 3:
        condition, result, other = where.operands
        if where.method:
            condition, result = result, condition
        if branch in (result, other):
            return _Mask(condition, branch is result, fill=False)
    fill = called(node, "masked_fill")
    if fill and fill.method and fill.operands[0] is branch and len(fill.operands) == 3:
        return _Mask(fill.operands[1], used=False, fill=True)
    return None


def _made_safe(
    code: Statement, argument: ast.expr, safe: str, mask: _Mask, *, direct: bool
) -> list[Edit]:
    if not _repeatable(mask.condition):
        return []
    condition = code.text(mask.condition)
    if mask.fill and direct:
        return code.append(argument, f".masked_fill({condition}, {safe})")
    if not code.torch:
        return []
    pair = (code.text(argument), safe) if mask.used else (safe, code.text(argument))
    new = f"{code.torch}.where({condition}, {pair[0]}, {pair[1]})"
    return [Edit(*code.outer(argument), new)]


def _repeatable(condition: ast.expr) -> bool:
    """Whether a condition may be computed twice: comparisons, nothing that acts or draws."""
    for part in ast.walk(condition):
        if isinstance(part, ast.Call):
            named = isinstance(part.func, ast.Attribute) and part.func.attr in _COMPARISONS
            if not named:
                return False
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
    return True
