"""Reductions of empty tensors, of one value or of equal values, and norms."""

from __future__ import annotations

import ast

from .cause import Cause, Stat
from .overflow import overflow
from .prescription import (
    Change,
    Remedy,
    epsilon,
    only,
    places,
    prescribe,
)
from .sites import Site, constant, simple


def mean(cause: Cause) -> Remedy | None:
    """The mean of no values is 0 / 0."""
    stat = cause.input(0)
    if cause.backward or stat is None or stat.numel or stat.bad:
        return overflow(cause)
    return prescribe(
        cause,
        "mean of an empty tensor",
        "nothing was selected, and the mean over 0 values is 0 / 0: divide the sum by the count, "
        "at least 1, or skip the term for such a batch",
        0.95,
        _sum_over_count(cause),
    )


def _sum_over_count(cause: Cause) -> Change | None:
    code, site = cause.statement, only(places(cause))
    if code is None or site is None or len(site.operands) != 1 or site.keywords:
        return None
    what = site.operands[0]
    if not simple(what) or not isinstance(what, ast.Name | ast.Attribute | ast.Subscript):
        return None
    x = code.text(what)
    new = f"{x}.sum() / max({x}.numel(), 1)"
    above = code.parents.get(site.node)
    alone = isinstance(above, ast.Assign | ast.Return | ast.Expr | ast.AugAssign | ast.AnnAssign)
    new = new if alone else f"({new})"
    return Change(tuple(code.replace(site.node, new)), site.node)


def spread(cause: Cause) -> Remedy | None:
    """std and var of one value, of none, or (in backward) of equal ones."""
    name, stat = cause.name, cause.input(0)
    if cause.backward:
        text = (
            f"the derivative of {name} at 0 is infinite or tiny values overflow in it: use "
            "(x.var(correction=0) + 1e-12).sqrt(), which has a finite one"
        )
        return prescribe(cause, f"{name} of equal values in backward", text, 0.6)
    if stat is None or stat.bad or not (cause.output or Stat()).nan:
        return overflow(cause)
    if not stat.numel:
        text = "nothing was selected: skip the term for such a batch"
        return prescribe(cause, f"{name} of an empty tensor", text, 0.95)
    return prescribe(
        cause,
        f"{name} of one sample",
        f"{name} divides by N - 1, here 0: use correction=0, or drop_last=True in the loader if it "
        "is the last batch that holds one sample",
        0.95,
        _uncorrected(cause),
    )


def _uncorrected(cause: Cause) -> Change | None:
    code, site = cause.statement, only(places(cause))
    if code is None or site is None or not isinstance(site.node, ast.Call):
        return None
    flag = next((o for o in site.operands[1:] if _word(o) is True), None)
    asked = site.keyword("unbiased") or site.keyword("correction") or flag
    if asked:
        edits = code.replace(asked, "False" if site.keyword("correction") is None else "0")
    else:
        edits = code.argument(site.node, "correction=0")
    above = code.parents.get(site.node)
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div) and above.right is site.node:
        # The std of one value is 0, and it is divided by.
        edits += code.append(site.node, f".clamp_min({epsilon(cause, 'div')})")
        return Change(tuple(edits), above)
    return Change(tuple(edits), site.node)


def norm(cause: Cause) -> Remedy | None:
    """Norms and distances at zero, where they have a corner."""
    if not cause.backward:
        return overflow(cause)
    change = _smooth_norm(cause) if cause.name != "cdist" else None
    return prescribe(
        cause,
        f"{cause.name} of a zero vector in backward",
        "a norm has a corner at 0, and its derivative (or second derivative) is not finite "
        "there: add an epsilon under the root",
        0.85 if change else 0.6,
        change,
    )


def second_derivative(cause: Cause) -> Remedy | None:
    """A derivative that was taken with ``create_graph`` and is differentiated again."""
    code = cause.statement
    if code is None or not cause.backward:
        return None
    taken = [n for n in code.nodes if isinstance(n, ast.keyword) and n.arg == "create_graph"]
    if not taken:
        return None
    return prescribe(
        cause,
        f"{'division by 0' if cause.name == 'div' else cause.name} in a second derivative",
        "the second derivative is infinite here, as those of norm and sqrt are at 0: write the "
        "function with (x.square().sum(dim) + 1e-12).sqrt()",
        0.7,
    )


def _smooth_norm(cause: Cause) -> Change | None:
    """``x.norm(dim=1)`` as ``(x.square().sum(dim=1) + eps).sqrt()``; only the 2-norm is that."""
    code, site = cause.statement, only(places(cause))
    if code is None or site is None or not isinstance(site.node, ast.Call):
        return None
    if not site.keywords <= {"dim", "keepdim", "p", "ord"} or _at(site, 3):
        return None
    order = site.keyword("p") or site.keyword("ord") or _at(site, 1)
    if order is not None and constant(order) != 2 and _word(order) != "fro":
        return None
    dim = site.keyword("dim") or _at(site, 2)
    if order and not dim and code.text(site.node.func).endswith("linalg.norm"):
        return None  # of a matrix, that is its largest singular value
    arguments = [f"dim={code.text(dim)}"] if dim else []
    keep = site.keyword("keepdim")
    arguments += [f"keepdim={code.text(keep)}"] if keep else []
    square = code.between(*code.outer(site.operands[0]), code.append(site.operands[0], ".square()"))
    new = f"({square}.sum({', '.join(arguments)}) + {epsilon(cause, 'sqrt')}).sqrt()"
    return Change(tuple(code.replace(site.node, new)), site.node)


def _at(site: Site, index: int) -> ast.expr | None:
    return site.operands[index] if len(site.operands) > index else None


def _word(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def product(cause: Cause) -> Remedy | None:
    """prod and cumprod: they overflow and underflow quickly."""
    result = overflow(cause)
    if not cause.backward and result is None and not (cause.output or Stat()).inf:
        return None
    where = "in backward" if cause.backward else "left the range of its format"
    return prescribe(
        cause,
        f"{cause.name} {where}",
        "a product of many factors overflows or becomes 0: add logarithms instead, "
        "x.log().sum() or x.log().cumsum(), and keep the factors away from 0",
        0.6,
    )


def normalisation(cause: Cause) -> Remedy | None:
    """layer, group, batch and instance norm of equal values without an epsilon."""
    stat = cause.input(0) or Stat()
    if stat.bad:
        return None
    ranged = overflow(cause) if cause.half or stat.largest > 1e15 else None
    if ranged:
        return ranged
    name = cause.name
    return prescribe(
        cause,
        f"{name} of equal values{' in backward' if cause.backward else ''}",
        "a variance of 0 (a constant channel, one value per channel) is divided by: give the norm "
        "an eps of 1e-5 and more than one value per channel",
        0.8,
        _eps(cause),
    )


def _eps(cause: Cause) -> Change | None:
    """An ``eps`` written out in the statement that is too small to work."""
    code = cause.statement
    if code is None:
        return None
    found: list[tuple[ast.expr, ast.AST]] = []
    for node in code.nodes:
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            value = constant(keyword.value)
            if keyword.arg == "eps" and value is not None and 0 <= value < 1e-7:
                found.append((keyword.value, node))
    if len(found) != 1:
        return None
    value, call = found[0]
    return Change(tuple(code.replace(value, "1e-5")), call)


RULES = {
    "mean": mean, "std": spread, "var": spread, "norm": norm, "linalg_vector_norm": norm,
    "cdist": norm, "prod": product, "cumprod": product, "layer_norm": normalisation,
    "group_norm": normalisation, "batch_norm": normalisation, "instance_norm": normalisation,
    "rms_norm": normalisation, "fused_rms_norm": normalisation,
}  # fmt: skip
