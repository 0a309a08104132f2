"""Masked values that still do harm: rows of -inf, inf * 0, inf - inf."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from .cause import Cause, Stat
from .guards import guard_all
from .prescription import (
    Change,
    Remedy,
    amount,
    only,
    places,
    prescribe,
)
from .sites import (
    Site,
    called,
    constant,
    simple,
)
from .source import Edit, Statement

_MASK = re.compile(r"(^|_|\.)(mask|keep|valid)(_|$|\[|\.)")


def softmax(cause: Cause) -> Remedy | None:
    """A row of which everything is masked with -inf."""
    scores = cause.input(0) or Stat()
    if cause.backward or (cause.inputs and not scores.inf):
        return None
    name, output = cause.name, cause.output or Stat()
    # One +inf spoils its whole row; a row that is all -inf is no longer than its infinities.
    if cause.inputs and output.nan > scores.inf:
        text = "its softmax is inf / inf: look at what overflowed before it"
        return prescribe(cause, f"{name} of +inf", f"a score is +inf, and {text}", 0.6)
    change = _finite_mask(cause) or guard_all(cause, _not_below_lowest)
    what = "its softmax is 0 / 0" if "softmax" in name else "its logsumexp is -inf"
    return prescribe(
        cause,
        f"{name} over a row that is all -inf",
        f"every entry of a row is masked with -inf, and {what} (nan_to_num after it would not save "
        "the gradient): mask with the lowest finite number",
        0.9 if cause.inputs else 0.5,
        change,
    )


def _finite_mask(cause: Cause) -> Change | None:
    """Exchange the -inf of a ``masked_fill`` or ``where`` that stands in the same statement."""
    code = cause.statement
    infinities = [n for n in code.nodes if _minus_infinity(code, n)] if code else []
    if code is None or len(infinities) != 1:
        return None
    call = code.parents.get(infinities[0])
    fill, where = (called(call, name) if call else None for name in ("masked_fill", "where"))
    tensor = fill.operands[0] if fill else None
    if where and len(where.operands) == 3:
        branches = where.operands[::2] if where.method else where.operands[1:]
        tensor = next((b for b in branches if b is not infinities[0]), None)
    lowest = _lowest_of(code, tensor)
    return Change(tuple(code.replace(infinities[0], lowest)), call or infinities[0])


def _minus_infinity(code: Statement, node: ast.AST) -> bool:
    text = code.text(node).replace(" ", "").replace('"', "'") if isinstance(node, ast.expr) else ""
    return text in {
        "float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf", "-inf",
        "float('-infinity')", "-th.inf",
    }  # fmt: skip


def _not_below_lowest(code: Statement, site: Site) -> list[Edit]:
    return code.append(site.operands[0], f".clamp_min({_lowest_of(code, site.operands[0])})")


def _lowest_of(code: Statement, tensor: ast.expr | None) -> str:
    """The lowest number of a tensor's own format, or one that is low enough in every format.

    What softmax was given is no guide: autocast may have converted it on the way.
    """
    if code.torch and tensor is not None and simple(tensor):
        return f"{code.torch}.finfo({code.text(tensor)}.dtype).min"
    return "-6e4"


def product(cause: Cause) -> Remedy | None:
    """inf * 0, as it comes of masking by multiplication."""
    if cause.backward:
        return _product_backward(cause)
    written = _finite_mask(cause)
    if written and any(stat.zeros for stat in cause.inputs):
        text = "0 times the infinity that is written here is NaN, not 0: use a finite number"
        return prescribe(cause, "0 * inf", text, 0.95, written)
    if len(cause.inputs) == 1 and cause.inputs[0].inf:
        # The other factor is no floating tensor: a mask of truth values or of whole numbers.
        mask = _named_mask(cause)
        return product(replace(cause, inputs=mask)) if mask else None
    pairs = [(a, b) for a, b in ((0, 1), (1, 0)) if len(cause.inputs) > 1]
    for at, by in pairs:
        values, mask = cause.inputs[at], cause.inputs[by]
        if values.inf and mask.zeros and (cause.output or Stat()).nan:
            return prescribe(
                cause,
                "inf * 0",
                f"{amount(values.inf, values.numel, 'the value is', 'values are')} infinite where "
                "the other factor is 0, which gives NaN: keep that factor finite, or if the 0 is "
                "a mask, use masked_fill or torch.where instead of the product",
                0.9,
                _masked_fill(cause, at, by),
            )
    return None


def _named_mask(cause: Cause) -> tuple[Stat, Stat] | None:
    """Both factors when one of them calls itself a mask, in the order they are written."""
    code, site = cause.statement, only(places(cause))
    mask = Stat(dtype="bool", zeros=1, numel=1)
    if code is None or site is None or len(site.operands) != 2:
        return None
    named = [bool(_MASK.search(code.text(operand))) for operand in site.operands]
    if named == [False, True]:
        return cause.inputs[0], mask
    return (mask, cause.inputs[0]) if named == [True, False] else None


def _product_backward(cause: Cause) -> Remedy | None:
    if not cause.masked:
        return None
    return prescribe(
        cause,
        "0 * inf in backward",
        "a gradient of 0 was multiplied by an infinite factor, as masked values are: keep "
        "that factor finite before the product, masking its result is too late",
        0.5,
    )


def _masked_fill(cause: Cause, at: int, by: int) -> Change | None:
    code, site, output = cause.statement, only(places(cause)), cause.output
    values, mask = cause.inputs[at], cause.inputs[by]
    if code is None or site is None or site.inplace or len(site.operands) != 2 or output is None:
        return None
    # What is infinite outside of the mask stays infinite, and a soft mask is no mask.
    if output.inf or not mask.binary or any(constant(o) is not None for o in site.operands):
        return None
    tensor, by_what = site.operands[at], site.operands[by]
    condition = f"{code.text(by_what)} == 0"
    if isinstance(by_what, ast.UnaryOp):
        return None
    if not isinstance(by_what, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        condition = f"({code.text(by_what)}) == 0"
    if values.shape == output.shape:
        edits = code.append(tensor, f".masked_fill({condition}, 0.0)")
        new = code.between(*code.outer(tensor), edits)
    elif code.torch:
        new = f"{code.torch}.where({condition}, 0.0, {code.text(tensor)})"
    else:
        return None
    return Change((Edit(*code.outer(site.node), new),), site.node)


def difference(cause: Cause) -> Remedy | None:
    """inf - inf, in a sum or a difference."""
    infinite = [stat for stat in cause.inputs if stat.inf]
    if cause.backward or len(infinite) < 2 or not (cause.output or Stat()).nan:
        return None
    return prescribe(
        cause,
        "inf - inf",
        "both sides are infinite where they meet, which gives NaN: if they were masked with -inf, "
        "mask with torch.finfo(x.dtype).min instead; if they overflowed, look at what made them",
        0.7,
    )


def matrix_product(cause: Cause) -> Remedy | None:
    """inf * 0 inside a matrix product."""
    if cause.backward:
        return _left_out_too_late(cause)
    if not any(stat.inf for stat in cause.inputs):
        return None
    return prescribe(
        cause,
        f"infinity goes into {cause.name}",
        "an infinite input meets zeros or infinities of the other sign in the product: scores "
        "masked with -inf must go through softmax before they are multiplied by anything",
        0.6,
    )


def _left_out_too_late(cause: Cause) -> Remedy | None:
    """Rows of NaN that the loss ignores: their gradient is 0, and 0 * NaN is NaN."""
    read, gradient = cause.inputs[:-1], (cause.inputs or (Stat(),))[-1]
    holds = next((stat for stat in read if stat.nan), None)
    if holds is None or gradient.bad:
        return None
    return prescribe(
        cause,
        f"0 * NaN in the gradient of {cause.name}'s weights",
        f"{amount(holds.nan, holds.numel, 'the value is', 'values are')} NaN in what this layer "
        "reads; the loss ignores their rows, but a gradient of 0 times NaN is NaN: replace them "
        "before the model sees them, or select the rows before it and not after",
        0.9,
        _without_nan(cause),
    )


def _without_nan(cause: Cause) -> Change | None:
    """Clean the argument of the one call of the statement that has a single plain one."""
    code = cause.statement
    if code is None or not code.torch:
        return None
    calls = [
        node
        for node in code.nodes
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    ]
    if len(calls) != 1 or not isinstance(calls[0].args[0], ast.Name):
        return None
    given = calls[0].args[0]
    cleaned = f"{code.torch}.nan_to_num({code.text(given)})"
    return Change(tuple(code.replace(given, cleaned)), calls[0])


RULES = {
    "softmax": softmax, "log_softmax": softmax, "logsumexp": softmax, "mul": product,
    "sub": difference, "add": difference, "mm": matrix_product, "bmm": matrix_product,
    "addmm": matrix_product, "baddbmm": matrix_product, "logcumsumexp": softmax,
}  # fmt: skip
