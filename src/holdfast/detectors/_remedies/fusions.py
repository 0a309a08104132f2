"""Two functions in a row that one function of torch computes without passing through 0 or inf.

>>> code = Statement.parse("lse = torch.log(torch.exp(x).sum(dim=1, keepdim=True))")
>>> fuse(code, next(n for n in code.nodes if isinstance(n, ast.Call)))
Fusion(text='torch.logsumexp(x, dim=1, keepdim=True)', why='logsumexp subtracts the maximum first')
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from .cause import Cause
from .prescription import Change, places
from .sites import (
    Site,
    called,
    constant,
    simple,
)
from .source import Statement

_LOG2 = "0.6931471805599453"


class Fusion(NamedTuple):
    """The new form of an expression, and why it is better."""

    text: str
    why: str


def fusion(cause: Cause) -> tuple[Change, str] | None:
    """A better form of the expression around the guilty operation, and why."""
    code = cause.statement
    found = places(cause)
    if code is None or not found:
        return None
    results: dict[ast.AST, Fusion] = {}
    for site in found:
        around = [site.node, *code.ancestors(site.node)]
        better = [(node, new) for node in around if (new := fuse(code, node))]
        if not better:
            return None  # the guilty one may be the place without a better form
        results[better[-1][0]] = better[-1][1]
    edits = [edit for node, new in results.items() for edit in code.replace(node, new.text)]
    node, new = next(iter(results.items()))
    return Change(tuple(edits), node), new.why


def fuse(code: Statement, node: ast.AST) -> Fusion | None:
    """The better form of one expression; None when there is none."""
    log = called(node, "log")
    if log:
        return _of_log(code, log.operands[0])
    log1p = called(node, "log1p")
    exp = called(log1p.operands[0], "exp") if log1p else None
    if exp:
        return _softplus(code, exp)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _of_quotient(code, node)
    return None


def _of_log(code: Statement, inner: ast.expr) -> Fusion | None:
    softmax = called(inner, "softmax")
    if softmax and isinstance(inner, ast.Call):
        func = code.text(inner.func)
        new = func[: -len("softmax")] + "log_softmax"
        if isinstance(inner.func, ast.Name):
            new = f"{code.functional}.log_softmax" if code.functional else ""
        rest = code.text(inner)[len(func) :]
        return (
            Fusion(new + rest, "log_softmax never forms the 0 that log makes -inf") if new else None
        )
    why = "logsigmoid never forms the 0 that log makes -inf"
    sigmoid = called(inner, "sigmoid")
    if sigmoid and code.functional:
        return Fusion(f"{code.functional}.logsigmoid({code.text(sigmoid.operands[0])})", why)
    match inner:
        case ast.BinOp(left=one, op=ast.Sub(), right=right) if constant(one) == 1:
            sigmoid = called(right, "sigmoid")
            if sigmoid and code.functional:
                negated = _prefixed(code, "-", sigmoid.operands[0])
                return Fusion(f"{code.functional}.logsigmoid({negated})", why)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            exp = _one_plus_exp(left, right)
            return _softplus(code, exp) if exp else None
        case _:
            pass
    cosh = called(inner, "cosh")
    if cosh and code.functional and simple(cosh.operands[0]):
        x = code.text(cosh.operands[0])
        text = f"({x} + {code.functional}.softplus(-2.0 * {x}) - {_LOG2})"
        return Fusion(text, "log(cosh(x)) = x + softplus(-2 x) - log(2) does not overflow")
    return _logsumexp(code, inner)


def _logsumexp(code: Statement, inner: ast.expr) -> Fusion | None:
    total = called(inner, "sum")
    exp = called(total.operands[0], "exp") if total else None
    if not total or not exp or not total.keywords <= {"dim", "keepdim", "input"}:
        return None
    assert isinstance(total.node, ast.Call)
    if isinstance(total.node.func, ast.Name):
        return None  # Python's own sum goes over the first dimension
    x = code.text(exp.operands[0])
    arguments = [code.text(operand) for operand in total.operands[1:]]
    arguments += [code.text(k) for k in total.node.keywords if k.arg != "input"]
    why = "logsumexp subtracts the maximum first"
    if not arguments:
        atomic = isinstance(exp.operands[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        x, arguments = (f"{x}.flatten()" if atomic else f"({x}).flatten()"), ["0"]
    if code.torch:
        return Fusion(f"{code.torch}.logsumexp({x}, {', '.join(arguments)})", why)
    return Fusion(f"{_prefixed(code, '', exp.operands[0])}.logsumexp({', '.join(arguments)})", why)


def _softplus(code: Statement, exp: Site) -> Fusion | None:
    if not code.functional:
        return None
    text = f"{code.functional}.softplus({code.text(exp.operands[0])})"
    return Fusion(text, "softplus is log(1 + exp(x)) without the overflow")


def _of_quotient(code: Statement, node: ast.BinOp) -> Fusion | None:
    """exp(x) / exp(x).sum(..., keepdim=True) and n / (1 + exp(-x))."""
    above, below = called(node.left, "exp"), called(node.right, "sum")
    under = called(below.operands[0], "exp") if below else None
    if above and below and under:
        x, dims = code.text(above.operands[0]), below.operands[1:]
        dim = below.keyword("dim") or (dims[0] if dims else None)
        keep = below.keyword("keepdim") or (dims[1] if len(dims) > 1 else None)
        kept = isinstance(keep, ast.Constant) and keep.value is True
        whole = kept and isinstance(dim, ast.Constant | ast.UnaryOp)
        if x == code.text(under.operands[0]) and code.torch and dim and whole:
            why = "softmax subtracts the maximum first"
            return Fusion(f"{code.torch}.softmax({x}, dim={code.text(dim)})", why)
    match node.right:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            exp = _one_plus_exp(left, right)
        case _:
            exp = None
    if not exp or not code.torch:
        return None
    inner = exp.operands[0]
    match inner:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            x = code.text(operand)
        case _:
            x = _prefixed(code, "-", inner)
    new = f"{code.torch}.sigmoid({x})"
    if constant(node.left) != 1:
        new = f"{_prefixed(code, '', node.left)} * {new}"
    return Fusion(new, "sigmoid does not overflow")


def _one_plus_exp(left: ast.expr, right: ast.expr) -> Site | None:
    if constant(left) == 1:
        return called(right, "exp")
    return called(left, "exp") if constant(right) == 1 else None


def _prefixed(code: Statement, sign: str, node: ast.expr) -> str:
    """An expression behind a sign or before a dot, in parentheses where it needs them."""
    text = code.text(node)
    atomic = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"{sign}{text}" if atomic else f"{sign}({text})"
