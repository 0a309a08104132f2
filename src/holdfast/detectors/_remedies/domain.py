"""Functions at or beyond the edge of their domain: log, sqrt, powers, acos and the like."""

from __future__ import annotations

import ast

from ...records.nonfinite import Cause, TensorStats
from .cause import input_of, largest_of, name_of, statement_of
from .changes import clamp_all, guard_all
from .masking import behind_mask
from .prescription import (
    Remedy,
    StatementEdit,
    amount,
    edge,
    epsilon,
    figure,
    only,
    places,
    prescribe,
)
from .sites import constant

# Below this a derivative that is infinite at 0 is as good as infinite.
_NEAR = 1e-30
# What computes a logarithm without forming the 0 in between.
_STABLE = {"softmax": "log_softmax", "sigmoid": "logsigmoid", "exp": "logsumexp"}


def logarithm(cause: Cause) -> Remedy | None:
    """log and the like at or below 0."""
    name, stat = name_of(cause), input_of(cause, 0)
    change = clamp_all(cause, epsilon(cause, "log"))
    if cause.backward:
        if _away(cause):
            return None
        text = (
            f"the derivative of {name} is infinite at 0, and NaN where the value is masked "
            "afterwards: clamp the argument before it"
        )
        return _in_backward(cause, f"{name} of 0", text, 0.9, change)
    if stat and stat.low < 0:
        return _below(cause, stat, change)
    if stat and stat.inf and not stat.zeros:
        return None
    text = "the argument reaches 0"
    if stat and stat.zeros:
        one, many = f"the value that goes into {name} is", f"values that go into {name} are"
        text = f"{amount(stat.zeros, stat.numel, one, many)} 0"
    better = next((new for old, new in _STABLE.items() if f"{old}(" in cause.code), "")
    text += f": use {better}, which never forms it, or" if better else ":"
    sure = 0.95 if stat else 0.6
    return prescribe(cause, f"{name} of 0", f"{text} clamp the argument", sure, change)


def root(cause: Cause) -> Remedy | None:
    """sqrt and rsqrt: infinite slope at 0, NaN below."""
    name, stat = name_of(cause), input_of(cause, 0)
    small = epsilon(cause, name)
    change = guard_all(cause, lambda code, site: code.add(site.operands[0], small))
    if cause.backward:
        if _away(cause):
            return None
        text = f"the derivative of {name} at 0 is infinite: add an epsilon inside, not after it"
        return _in_backward(cause, f"{name} of 0", text, 0.95, change)
    if stat and stat.low < 0:
        # A variance written as E[x*x] - E[x]**2 does this by rounding.
        return _below(cause, stat, clamp_all(cause, small))
    if name == "sqrt" or (stat and stat.inf):
        return None
    text = "1 / sqrt(0) is infinite: add an epsilon inside"
    return prescribe(cause, "rsqrt of 0", text, 0.95 if stat else 0.6, change)


def power(cause: Cause) -> Remedy | None:
    """x ** p: negative x with broken p, zero x with negative p or (in backward) p below 1."""
    site = only(places(cause))
    exponent = None
    if site:
        exponent = constant(site.operands[1]) if len(site.operands) > 1 else 2.0
    how = "a fractional power" if exponent is None else f"power {exponent:g}"
    small = epsilon(cause, "sqrt" if exponent is None or exponent > 0 else "rsqrt")
    if cause.backward:
        if (exponent is not None and exponent >= 1) or _away(cause):
            return None
        text = "the derivative is infinite at 0: add an epsilon to the base"
        change = guard_all(cause, lambda code, site: code.add(site.operands[0], small))
        return _in_backward(cause, f"0 to {how}", text, 0.95 if exponent else 0.6, change)
    base, output = input_of(cause, 0) or TensorStats(), cause.output or TensorStats()
    if base.negative and output.nan and (exponent is None or not exponent.is_integer()):
        return _below(cause, base, clamp_all(cause, small))
    if base.zeros and output.inf and exponent is not None and exponent < 0:
        # A higher power of an epsilon is beyond every format.
        safe = exponent >= -1 and not base.negative
        text = f"{how} of 0 is infinite: keep the base away from 0"
        change = clamp_all(cause, small) if safe else None
        return prescribe(cause, f"0 to {how}", text, 0.9, change)
    return None


def bounded(cause: Cause) -> Remedy | None:
    """acos, asin, atanh and erfinv at or beyond the edge of [-1, 1]."""
    name, near, stat = name_of(cause), edge(cause), input_of(cause, 0)
    inside = f".clamp(-1 + {near}, 1 - {near})"
    change = guard_all(cause, lambda code, site: code.append(site.operands[0], inside))
    headline = f"{name} at the edge of [-1, 1]"
    text = f"{name} or its derivative is infinite at the edge: keep the argument {near} inside"
    if cause.backward:
        return _in_backward(cause, headline, text, 0.95, change, safe="0")
    if stat and largest_of(stat) > 1 + _rounding(cause, TensorStats()):
        text = (
            f"the argument runs from {figure(stat.low)} to {figure(stat.high)}: normalise it to "
            "[-1, 1] where it is computed, a clamp is for rounding only"
        )
        return prescribe(cause, f"{name} outside of [-1, 1]", text, 0.8)
    return prescribe(cause, headline, text, 0.95, change)


def _away(cause: Cause) -> bool:
    """Whether what the forward pass kept was nowhere near 0: then the gradient overflowed."""
    return len(cause.inputs) > 1 and cause.inputs[0].low > _NEAR


def _in_backward(
    cause: Cause,
    headline: str,
    text: str,
    sure: float,
    change: StatementEdit | None,
    safe: str = "1",
) -> Remedy:
    trap = behind_mask(cause, headline, safe)
    return trap or prescribe(cause, f"{headline} in backward", text, sure, change)


def norm(cause: Cause) -> Remedy | None:
    """Norms at zero, where they have a corner."""
    if not cause.backward:
        return None
    change = _smooth_norm(cause)
    return prescribe(
        cause,
        "norm of a zero vector in backward",
        "a norm has a corner at 0, and its derivative (or second derivative) is not finite "
        "there: add an epsilon under the root",
        0.85 if change else 0.6,
        change,
    )


def _smooth_norm(cause: Cause) -> StatementEdit | None:
    """``x.norm(dim=1)`` as ``(x.square().sum(dim=1) + eps).sqrt()``; only the 2-norm is that."""
    code, site = statement_of(cause), only(places(cause, "norm"))
    if code is None or site is None or not site.keywords <= {"dim", "keepdim", "p"}:
        return None
    x, *given = site.operands
    order = site.keyword("p") or (given[0] if given else None)
    dim = site.keyword("dim") or (given[1] if len(given) > 1 else None)
    # Given an order, linalg.norm of a matrix is its largest singular value.
    linalg = isinstance(site.node, ast.Call) and "linalg.norm" in code.text(site.node.func)
    if len(given) > 2 or (order is not None and (constant(order) != 2 or linalg)):
        return None
    keep = site.keyword("keepdim")
    arguments = [f"dim={code.text(dim)}"] if dim else []
    arguments += [f"keepdim={code.text(keep)}"] if keep else []
    square = code.between(*code.outer(x), code.append(x, ".square()"))
    new = f"({square}.sum({', '.join(arguments)}) + {epsilon(cause, 'sqrt')}).sqrt()"
    return StatementEdit(tuple(code.replace(site.node, new)), site.node)


def _below(cause: Cause, stat: TensorStats, change: StatementEdit | None) -> Remedy:
    """An argument below 0: by rounding, which a clamp repairs, or really."""
    headline = f"{name_of(cause)} of a number below 0 ({figure(stat.low)})"
    if stat.low >= -_rounding(cause, stat) and not _kept(cause):
        text = "rounding took the argument below 0: clamp it"
        return prescribe(cause, headline, text, 0.9, change)
    far = "and it is no result of rounding" if _kept(cause) else "too far below 0 for rounding"
    text = (
        f"the argument goes down to {figure(stat.low)}, {far}: repair it "
        "where it is computed (softplus, exp, a square), a clamp would hide the sign"
    )
    return prescribe(cause, headline, text, 0.8)


def _kept(cause: Cause) -> bool:
    """Whether the argument is read as it was stored, a weight for example: none is computed."""
    found = places(cause)
    return bool(found) and all(isinstance(site.operands[0], ast.Attribute) for site in found)


def _rounding(cause: Cause, stat: TensorStats) -> float:
    """How far a value may be off by rounding alone; a guess, generous to cancellation."""
    coarse = cause.dtype in ("float16", "bfloat16")
    return (1e-2 if coarse else 1e-4) + (1e-3 if coarse else 1e-5) * largest_of(stat)


RULES = {
    **dict.fromkeys(("log", "log2", "log10"), logarithm),
    **dict.fromkeys(("sqrt", "rsqrt"), root),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), bounded),
    "pow": power,
    "norm": norm,
}
