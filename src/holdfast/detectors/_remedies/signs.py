"""Whether a divisor can be negative, and whether it counts things: from its code and its numbers.

A divisor that is 0 today and negative tomorrow must not be clamped from below.
"""

from __future__ import annotations

import ast
import re

from .cause import Stat
from .sites import called, constant, sites
from .source import Statement

# Functions whose result is never below zero.
_POSITIVE = {
    "norm", "vector_norm", "std", "var", "abs", "exp", "sqrt", "square", "softmax", "sigmoid",
    "relu", "softplus", "count_nonzero", "numel", "size", "len", "cosh", "clamp_min",
}  # fmt: skip
# Names that people give to things that are never below zero.
_NAMES = re.compile(
    r"(^|_)(n|num|nums|cnt|counts?|norms?|std|sigma|var|variance|mask|valid|lens?|lengths?|"
    r"weights?|totals?|denom|denominator|size|area|scale|mass|degrees?|deg)\d*(_|$)"
)
# Names of Python numbers that count. A tensor ``n`` may as well be a norm.
_NUMBERS = re.compile(r"(^|_)(n|num|nums|cnt|counts?|lens?|lengths?|size|total)\d*(_|$)")
_TENSORS = re.compile(r"(^|_)(cnt|counts?|mask|valid)\d*(_|$)|^(n|num)_")
# That so many values of either sign are all above zero happens once in a thousand times.
_MANY = 10
_ENDS = (("max", "min"), ("high", "low"), ("upper", "lower"), ("hi", "lo"))
# Methods that leave the values of a tensor as they are.
_VIEWS = {
    "float", "double", "item", "detach", "to", "unsqueeze", "squeeze", "view", "reshape", "expand",
    "expand_as", "transpose",
}  # fmt: skip


def never_negative(
    code: Statement, divisor: ast.expr, above: Stat | None = None, below: Stat | None = None
) -> bool:
    """Whether a divisor that is not negative now never is; one value alone proves nothing.

    Args:
        code: the statement it stands in.
        divisor: what is divided by.
        above: numbers of what is divided, where they were recorded.
        below: numbers of the divisor, where they were recorded.
    """
    if below and (below.integral or (below.numel >= _MANY and below.high > 0)):
        return True
    divisor = _seen_through(divisor)
    total = called(divisor, "sum") or called(divisor, "mean")
    if total:
        what = total.operands[0]
        parts = above is not None and not above.negative and above.numel > 1
        return parts or _named(what, _NAMES) or _positive(what) or _weighs(code, what)
    certain = _positive(divisor) or radicand(divisor) is not None
    return certain or _named(divisor, _NAMES) or _is_range(code, divisor)


def counts(divisor: ast.expr, below: Stat | None) -> bool:
    """Whether a tensor counts things, so that 1 is its least sensible value."""
    if below and below.integral:
        return True
    total = called(_seen_through(divisor), "sum")
    return _named(total.operands[0] if total else divisor, _TENSORS)


def counts_as_number(code: Statement, divisor: ast.expr, *, single: bool) -> bool:
    """Whether it is a count that Python's ``max`` can take; a name only if it is one value."""
    match divisor:
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=1)):
            return counts_as_number(code, left, single=single)
        case ast.Name(id=name) if _made_of(code, name, r"len\(|size\(|numel\(|\.shape"):
            return True
        case _:
            pass
    if _function(divisor) in {"len", "numel", "size", "item"}:
        return True
    return single and _named(divisor, _NUMBERS)


def made_by_root(code: Statement, divisor: ast.expr) -> bool:
    """Whether a line close by makes this variable with a square root."""
    return isinstance(divisor, ast.Name) and _made_of(code, divisor.id, r"sqrt\(|\*\* ?0?\.5")


def _made_of(code: Statement, name: str, pattern: str) -> bool:
    """Whether a line close by gives a variable a value with this in it."""
    return bool(re.search(rf"\b{name} = .*({pattern})", code.around))


def radicand(node: ast.expr) -> ast.expr | None:
    """What stands under the root when an expression is a root; None when it is not."""
    node = _seen_through(node)
    root = called(node, "sqrt")
    if root:
        return root.operands[0]
    match node:
        case ast.BinOp(left=base, op=ast.Pow(), right=right) if 0 < (constant(right) or 0.0) < 1:
            return base
        case _:
            return None


def _seen_through(node: ast.expr) -> ast.expr:
    """The expression without the methods behind it that leave its values as they are."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _VIEWS:
            break
        node = node.func.value
    return node


def _weighs(code: Statement, what: ast.expr) -> bool:
    """Whether ``w`` of ``w.sum()`` is multiplied with something: a weighted mean."""
    text = code.text(what)
    return any(text == code.text(side) for site in sites(code, "mul") for side in site.operands)


def _is_range(code: Statement, divisor: ast.expr) -> bool:
    """``x.max() - x.min()``, ``high - low``."""
    if not isinstance(divisor, ast.BinOp) or not isinstance(divisor.op, ast.Sub):
        return False
    high, low = code.text(divisor.left), code.text(divisor.right)
    return any(top in high and high.replace(top, end) == low for top, end in _ENDS)


def _positive(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.Pow(), right=exponent):
            return constant(exponent) == 2
        case _:
            return _function(node) in _POSITIVE


def _function(node: ast.expr) -> str:
    """The name of the function that is called last; empty for anything else."""
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _named(node: ast.expr, pattern: re.Pattern[str]) -> bool:
    """Whether the name of a variable or an attribute fits."""
    node = _seen_through(node)
    while isinstance(node, ast.Subscript):
        node = _seen_through(node.value)
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return bool(pattern.search(name.lower()))
        case _:
            return False
