"""Loss functions of torch that return NaN although their inputs look fine."""

from __future__ import annotations

import ast

from .cause import Cause, Stat
from .overflow import overflow
from .prescription import (
    Change,
    Remedy,
    only,
    places,
    prescribe,
)
from .sites import constant

# Methods that only look at a tensor in another way: harmless to write twice.
_VIEWS = {"view", "reshape", "flatten", "long", "to", "squeeze", "contiguous"}


def nll(cause: Cause) -> Remedy | None:
    """cross_entropy and nll_loss: bad class weights, or nothing to take the mean over."""
    if cause.backward or any(stat.bad for stat in cause.inputs[:1]):
        return overflow(cause)
    target = next((stat for stat in cause.inputs if stat.integral), None)
    weight = next((stat for stat in cause.inputs[1:] if not stat.integral), None)
    if weight and (weight.bad or weight.zeros or weight.negative):
        return _weights(cause, weight)
    ignored = _ignored(cause, target)
    headline = "cross entropy in which every target is ignored"
    if not ignored and target and target.numel:
        return overflow(cause)
    if target and not target.numel:
        headline = "cross entropy over an empty batch"
    return prescribe(
        cause,
        headline,
        "the mean over 0 targets is 0 / 0: divide the sum by the number of targets that count, at "
        "least 1, or skip such a batch",
        0.95 if target else 0.85 if cause.inputs else 0.5,
        _counted(cause),
    )


def _ignored(cause: Cause, target: Stat | None) -> bool:
    """Whether all targets are one value, and that is the ignored one."""
    if target is None:
        return (cause.output or Stat()).nan > 0
    if not target.numel or target.low != target.high:
        return False
    site = only(places(cause))
    given = site.keyword("ignore_index") if site else None
    written = -100.0 if given is None else constant(given)
    # What is not written out here (a variable, a criterion made elsewhere) is taken to be it.
    return site is None or written is None or target.low == written


def _counted(cause: Cause) -> Change | None:
    code, site = cause.statement, only(places(cause))
    if code is None or site is None or not isinstance(site.node, ast.Call) or site.method:
        return None
    if len(site.operands) != 2 or not site.keywords <= {"ignore_index", "input"}:
        return None
    target = site.operands[1]
    if not _view(target):
        return None
    ignore = site.keyword("ignore_index")
    nothing = code.text(ignore) if ignore else "-100"
    call = code.between(*code.span(site.node), code.argument(site.node, 'reduction="sum"'))
    new = f"{call} / ({code.text(target)} != {nothing}).sum().clamp_min(1)"
    above = code.parents.get(site.node)
    alone = isinstance(above, ast.Assign | ast.Return | ast.Expr | ast.AugAssign | ast.AnnAssign)
    return Change(tuple(code.replace(site.node, new if alone else f"({new})")), site.node)


def _view(node: ast.expr) -> bool:
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in _VIEWS:
                return False
            node = node.func
        node = node.value
    return isinstance(node, ast.Name)


def binary(cause: Cause) -> Remedy | None:
    """binary_cross_entropy and its form on logits: bad weights."""
    for weight in cause.inputs[2:]:
        if weight.bad:
            return _weights(cause, weight)
    return overflow(cause)


def _weights(cause: Cause, weight: Stat) -> Remedy:
    if weight.bad:
        what = f"{weight.bad} of {weight.numel} weights are NaN or infinite"
    elif weight.negative:
        what = f"{weight.negative} of {weight.numel} class weights are negative"
    else:
        what = f"{weight.zeros} of {weight.numel} class weights are 0, those of all targets"
    return prescribe(
        cause,
        f"bad weights in {cause.name}",
        f"{what}: a class that does not occur has no 1 / count; compute them with "
        "counts.clamp_min(1), and keep the sum of the weights of a batch above 0",
        0.9 if weight.bad else 0.7,
    )


def embedding(cause: Cause) -> Remedy | None:
    """A table with rows that were never filled."""
    bad = next((stat for stat in cause.inputs if stat.bad), None)
    if cause.backward or bad is None:
        return overflow(cause)
    where = f" of {cause.module}" if cause.module else ""
    return prescribe(
        cause,
        f"embedding{where} holds NaN or inf",
        f"{bad.bad} of {bad.numel} values of the table are non-finite: fill the rows that were "
        "added (torch.empty holds whatever was in memory), or load a checkpoint from before",
        0.9,
    )


RULES = {
    "nll_loss": nll, "cross_entropy_loss": nll, "binary_cross_entropy": binary,
    "binary_cross_entropy_with_logits": binary, "embedding": embedding, "embedding_bag": embedding,
}  # fmt: skip
