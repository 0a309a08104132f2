"""Functions at or beyond the edge of their domain: log, sqrt, acos and the like."""

from __future__ import annotations

import ast

from .cause import Cause, Stat
from .fusions import fusion
from .guards import (
    Guard,
    add_epsilon,
    clamp_all,
    guard_all,
)
from .prescription import (
    Change,
    Remedy,
    amount,
    edge,
    epsilon,
    figure,
    only,
    places,
    prescribe,
    slack,
)
from .sites import Site, constant
from .source import Edit, Statement
from .traps import TRAP, where_trap

# Where each function ends: infinite there, NaN below (or, for the gamma functions, a pole).
_BOTTOM = {
    "log": 0, "log2": 0, "log10": 0, "lgamma": 0, "digamma": 0, "entr": 0, "xlogy": 0,
    "log1p": -1, "acosh": 1,
}  # fmt: skip


def logarithm(cause: Cause) -> Remedy:
    """Rule for log and the like at or below their lower bound."""
    name, bottom = cause.name, _BOTTOM[cause.name]
    index = 1 if name == "xlogy" else 0
    stat = None if cause.backward else cause.input(index)
    close = epsilon(cause, "log") if bottom == 0 else f"{bottom} + {edge(cause)}"
    change = clamp_all(cause, close, index)
    better = fusion(cause)
    change = _log1p(cause) or change
    if cause.backward:
        trap = where_trap(cause, index)
        if trap:
            return prescribe(cause, f"{name} of {bottom} behind a mask", TRAP, 0.95, trap)
        text = (
            f"the derivative of {name} is infinite at {bottom}, and NaN where the value is masked "
            "afterwards: clamp the argument before it"
        )
        text, change = (better[1], better[0]) if better else (text, change)
        return prescribe(cause, f"{name} of {bottom} in backward", text, 0.9, change)
    headline, hit = f"{name} of {bottom}", f"the argument reaches {bottom}"
    if stat and stat.low < bottom:
        headline = f"{name} of a number below {bottom} ({figure(stat.low)})"
        hit = "rounding took the argument too far"
        if stat.low < bottom - slack(cause, stat):
            return prescribe(cause, headline, _wrong_sign(stat, bottom), 0.8)
    elif stat and stat.zeros and bottom == 0:
        one, many = f"the value that goes into {name} is", f"values that go into {name} are"
        hit = f"{amount(stat.zeros, stat.numel, one, many)} 0"
    elif stat and stat.inf:
        return already_infinite(cause)
    if better:
        return prescribe(cause, headline, better[1], 0.95, better[0])
    text = f"{hit}: clamp the argument"
    return prescribe(cause, headline, text, 0.95 if stat else 0.6, change)


def _log1p(cause: Cause) -> Change | None:
    """``log(1 + x)`` as log1p, which is exact for small x, with x kept above -1."""
    code, site = cause.statement, only(places(cause))
    if cause.name != "log" or code is None or site is None or not code.torch:
        return None
    match site.operands[0]:
        case ast.BinOp(left=one, op=ast.Add(), right=x) if constant(one) == 1:
            pass
        case ast.BinOp(left=x, op=ast.Add(), right=one) if constant(one) == 1:
            pass
        case _:
            return None
    clamped = code.append(x, f".clamp_min(-1 + {edge(cause)})")
    new = f"{code.torch}.log1p({code.between(*code.outer(x), clamped)})"
    return Change(tuple(code.replace(site.node, new)), site.node)


def root(cause: Cause) -> Remedy:
    """sqrt and rsqrt: infinite slope at 0, NaN below."""
    name = cause.name
    stat = None if cause.backward else cause.input(0)
    added = guard_all(cause, add_epsilon(cause, epsilon(cause, name)))
    if cause.backward:
        trap = where_trap(cause)
        if trap:
            return prescribe(cause, f"{name} of 0 behind a mask", TRAP, 0.95, trap)
        text = f"the derivative of {name} at 0 is infinite: add an epsilon inside, not after it"
        return prescribe(cause, f"{name} of 0 in backward", text, 0.95, added)
    if stat and stat.low < 0:
        headline = f"{name} of a negative number ({figure(stat.low)})"
        if stat.low < -slack(cause, stat):
            return prescribe(cause, headline, _wrong_sign(stat, 0), 0.8)
        # A variance written as E[x*x] - E[x]**2 does this.
        change = clamp_all(cause, epsilon(cause, name))
        text = f"rounding took the argument below 0: clamp it before the {name}"
        return prescribe(cause, headline, text, 0.9, change)
    if stat and stat.inf:
        return already_infinite(cause)
    if name == "rsqrt":
        text = "1 / sqrt(0) is infinite: add an epsilon inside"
        return prescribe(cause, "rsqrt of 0", text, 0.95 if stat else 0.6, added)
    text = "the argument is below 0: look at where it is computed"
    return prescribe(cause, "sqrt of a negative number", text, 0.5)


def bounded(cause: Cause) -> Remedy:
    """acos, asin, atanh, erfinv on [-1, 1], logit on [0, 1]."""
    name, near = cause.name, edge(cause)
    low, high = (0, 1) if name == "logit" else (-1, 1)
    stat = None if cause.backward else cause.input(0)
    headline = f"{name} at the edge of [{low}, {high}]"
    if cause.backward:
        trap = where_trap(cause)
        if trap:
            return prescribe(cause, f"{headline} behind a mask", TRAP, 0.95, trap)
        headline += " in backward"
    elif stat and (stat.low < low or stat.high > high):
        excess = max(low - stat.low, stat.high - high)
        worst = stat.low if low - stat.low == excess else stat.high
        headline = f"{name} of {worst:.9g}, outside [{low}, {high}]"
        if excess > slack(cause, Stat()):
            text = (
                f"the argument runs from {figure(stat.low)} to {figure(stat.high)}: normalise it "
                f"to [{low}, {high}] where it is computed, a clamp is for rounding only"
            )
            return prescribe(cause, headline, text, 0.8)
    elif stat and stat.inf:
        return already_infinite(cause)
    text = f"{name} or its derivative is infinite at the edge: keep the argument {near} inside"
    return prescribe(cause, headline, text, 0.95, guard_all(cause, _inside(name, near)))


def _inside(name: str, near: str) -> Guard:
    def guard(code: Statement, site: Site) -> list[Edit]:
        if name == "logit":
            # With an eps of its own it was written with care; what is wrong then is elsewhere.
            if site.keyword("eps") or len(site.operands) > 1 or not isinstance(site.node, ast.Call):
                return []
            return code.argument(site.node, f"eps={near}")
        return code.append(site.operands[0], f".clamp(-1 + {near}, 1 - {near})")

    return guard


def already_infinite(cause: Cause) -> Remedy:
    """Rule for an operation whose input was already infinite."""
    text = f"the input of {cause.name} is already infinite: look at what overflowed before it"
    return prescribe(cause, f"{cause.name} of inf", text, 0.4)


def _wrong_sign(stat: Stat, bottom: int) -> str:
    return (
        f"the argument goes down to {figure(stat.low)}, too far below {bottom} for rounding: "
        "repair it where it is computed (softplus, exp, a square), a clamp would hide the sign"
    )


RULES = {
    **dict.fromkeys(_BOTTOM, logarithm),
    **dict.fromkeys(("sqrt", "rsqrt"), root),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv", "logit"), bounded),
}
