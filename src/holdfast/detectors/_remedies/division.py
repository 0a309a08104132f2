"""Division by zero, and of zero by zero.

A divisor that is 0 today and negative tomorrow must not be clamped from below: whether it can be
negative is read from its code and its numbers.
"""

from __future__ import annotations

import ast
import re

from ...records.nonfinite import Cause, TensorStats
from ...source.edits import Statement
from ...source.syntax import last_name
from .cause import input_of, is_integral, largest_of, limit_of, name_of, statement_of
from .changes import clamped, clamped_elsewhere
from .masking import behind_mask
from .prescription import Remedy, StatementEdit, amount, epsilon, only, places, prescribe
from .sites import Site, called, constant, radicand, simple, sites, without_views

# Functions whose result is never below zero.
_POSITIVE = {
    "norm", "vector_norm", "std", "var", "abs", "exp", "softmax", "sigmoid",
    "relu", "softplus", "square", "clamp_min",
}  # fmt: skip
# Names that people give to things that are never below zero.
_NAMES = re.compile(
    r"(^|_)(n|num|nums|cnt|counts?|norms?|std|sigma|var|variance|mask|valid|lens?|lengths?|"
    r"weights?|totals?|denom|denominator|size|area|scale|mass|degrees?|deg)\d*(_|$)"
)
# Names of what counts. A tensor ``n`` may as well be a norm, and a mask may hold weights.
_COUNTS = re.compile(r"(^|_)(cnt|counts?|valid|lens?|lengths?)\d*(_|$)|^(n|num)_")
# That so many values of either sign are all above zero happens once in a thousand times.
_MANY = 10


def division(cause: Cause) -> Remedy | None:
    """a / b and 1 / b, by the value of the divisor."""
    # Not by a literal number: that is never 0.
    site = only([s for s in places(cause) if not constant(_divisor(s))])
    if cause.backward:
        return _backward(cause, site)
    above, below = (input_of(cause, i) or TensorStats() for i in (0, 1))
    if name_of(cause) == "reciprocal":
        above, below = TensorStats(), above
    elif input_of(cause, 0) and not input_of(cause, 1):
        return _by_number(cause, site, above)
    if not below.zeros:
        return None
    nothing = above.zeros and (cause.output or TensorStats()).nan
    headline = "0 / 0" if nothing else "division by 0"
    text = f"{amount(below.zeros, below.numel, 'the divisor is', 'divisors are')} 0"
    return _clamped(cause, site, above, below, headline, text)


def _backward(cause: Cause, site: Site | None) -> Remedy | None:
    if site is None:
        return None
    trap = behind_mask(cause, "division by 0", operand=len(site.operands) - 1)
    # The divisor is what is kept first of the forward pass, if anything was recorded of it.
    below = cause.inputs[0] if len(cause.inputs) > 1 else TensorStats()
    text = (
        "the derivative divides by the square of the divisor, which is 0 or tiny where the result "
        "is masked afterwards"
    )
    return trap or _clamped(cause, site, TensorStats(), below, "division by 0 in backward", text)


def _by_number(cause: Cause, site: Site | None, above: TensorStats) -> Remedy | None:
    """The divisor is no floating tensor: a count, a length, a number."""
    code, output = statement_of(cause), cause.output or TensorStats()
    if above.bad or (output.inf and not output.nan and largest_of(above) > 1e-3 * limit_of(cause)):
        return None
    headline = "0 / 0" if output.nan else "division by 0"
    text = "the divisor is the number 0: use max(count, 1), or skip the empty batch"
    if not output.nan:
        # It may as well be so small that the quotient overflows.
        headline = "division by 0, or by next to nothing"
        text = "the divisor is 0, or so small that the result overflows: keep it away from 0"
    change = None
    if code and site and len(site.operands) == 2:
        divisor = site.operands[1]
        total = called(divisor, "sum")
        if total and total.plain:
            change = StatementEdit(tuple(code.append(divisor, ".clamp_min(1)")), site.node)
        elif _function(divisor) in {"len", "numel", "size", "item"}:
            new = f"max({code.text(divisor)}, 1)"
            change = StatementEdit(tuple(code.replace(divisor, new)), site.node)
    return prescribe(cause, headline, text, 0.85, change)


def _divisor(site: Site) -> ast.expr:
    return site.operands[-1]


def _clamped(
    cause: Cause,
    site: Site | None,
    above: TensorStats,
    below: TensorStats,
    headline: str,
    text: str,
) -> Remedy:
    """With the divisor clamped from below where that is safe, else in words."""
    code = statement_of(cause)
    replaced = _replaced(code, site)
    advice = f"clamp it from below if it is never negative, else {replaced}"
    if below.negative:
        advice = (
            f"it takes both signs, so a clamp does not help; {replaced}, or drop the entries "
            "without a value"
        )
    elif code and site and _made_by_root(code, _divisor(site)):
        advice = (
            "add an epsilon inside the square root that computes it; a clamp after the root leaves "
            "its gradient NaN"
        )
    elif code and site and not below.bad and _never_negative(code, site, above, below):
        divisor = _divisor(site)
        bound = "1" if _counts(divisor, below) else epsilon(cause, "div")
        edits = clamped(cause, code, divisor, bound)
        edits += clamped_elsewhere(code, [divisor], bound)
        change = StatementEdit(tuple(edits), site.node)
        return prescribe(cause, headline, f"{text}: clamp from below", 0.95, change)
    return prescribe(cause, headline, f"{text}: {advice}", 0.8)


def _replaced(code: Statement | None, site: Site | None) -> str:
    """A divisor of 0 replaced, in the words of the source where it names the divisor."""
    if code is None or site is None or not simple(_divisor(site)):
        return "replace a divisor of 0 by 1e-12 with torch.where"
    name = " ".join(code.text(_divisor(site)).split())
    return f"use {code.torch or 'torch'}.where({name} == 0, 1e-12, {name})"


def _never_negative(code: Statement, site: Site, above: TensorStats, below: TensorStats) -> bool:
    """Whether a divisor that is not negative now never is; one value alone proves nothing.

    Args:
        code: the statement it stands in.
        site: the division.
        above: numbers of what is divided, as far as they were recorded.
        below: numbers of the divisor, as far as they were recorded.
    """
    if is_integral(below) or (below.numel >= _MANY and below.high > 0):
        return True
    divisor = without_views(_divisor(site))
    total = called(divisor, "sum") or called(divisor, "mean")
    if total:
        divisor = total.operands[0]
        if above.negative and code.text(divisor) == code.text(site.operands[0]):
            return False  # the parts of the sum are known, and some are negative
        # The parts of a whole, or the weights of a weighted mean.
        if (above.numel > 1 and not above.negative) or _weighs(code, divisor):
            return True
    if _positive(divisor) or _positive(_made_by(code, divisor)):
        return True
    return _named(divisor, _NAMES) or _is_range(code, divisor)


def _counts(divisor: ast.expr, below: TensorStats) -> bool:
    """Whether a tensor counts things, so that 1 is its least sensible value."""
    total = called(without_views(divisor), "sum")
    return is_integral(below) or _named(total.operands[0] if total else divisor, _COUNTS)


def _positive(node: ast.expr | None) -> bool:
    """Whether an expression is never negative, whatever goes into it."""
    if node is None:
        return False
    return _function(without_views(node)) in _POSITIVE or radicand(node) is not None


def _made_by(code: Statement, divisor: ast.expr) -> ast.expr | None:
    """What the last line above that assigns this variable makes it of; None where none is near."""
    if not isinstance(divisor, ast.Name):
        return None
    above = code.around.partition(code.code.split("\n")[0])[0]
    found = re.findall(rf"^\s*{divisor.id} = (.+)$", above, re.M)
    made = Statement.parse(found[-1]) if found else None
    match made.tree.body if made else []:
        case [ast.Expr(value=value)]:
            return value
        case _:
            return None


def _made_by_root(code: Statement, divisor: ast.expr) -> bool:
    """Whether a line close by makes this variable with a square root."""
    made = _made_by(code, divisor)
    return made is not None and radicand(made) is not None


def _weighs(code: Statement, what: ast.expr) -> bool:
    """Whether ``w`` of ``w.sum()`` is multiplied with something: a weighted mean."""
    text = code.text(what)
    return any(text == code.text(side) for site in sites(code, "mul") for side in site.operands)


def _is_range(code: Statement, divisor: ast.expr) -> bool:
    """``x.max() - x.min()``, ``high - low``."""
    if not isinstance(divisor, ast.BinOp) or not isinstance(divisor.op, ast.Sub):
        return False
    high, low = code.text(divisor.left), code.text(divisor.right)
    return high != low and high.replace("max", "min").replace("high", "low") == low


def _function(node: ast.expr) -> str:
    """The name of the function that is called last; empty for anything else."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def _named(node: ast.expr, pattern: re.Pattern[str]) -> bool:
    """Whether the name of a variable or an attribute fits."""
    node = without_views(node)
    while isinstance(node, ast.Subscript):
        node = without_views(node.value)
    name = last_name(node)
    return bool(name and pattern.search(name.lower()))


RULES = {"div": division, "reciprocal": division}
