"""Powers of zero and of negative numbers, and the angle of a zero vector."""

from __future__ import annotations

from .cause import Cause, Stat
from .guards import add_epsilon, clamp_below, guard_all
from .overflow import overflow
from .prescription import (
    Change,
    Remedy,
    epsilon,
    figure,
    only,
    places,
    prescribe,
    slack,
)
from .sites import constant, simple
from .traps import TRAP, where_trap


def power(cause: Cause) -> Remedy | None:
    """x ** p: negative x with broken p, zero x with negative p or (in backward) p below 1."""
    exponent = _exponent(cause)
    told = "a fractional power" if exponent is None else f"power {exponent:g}"
    kind = "rsqrt" if exponent is not None and exponent < 0 else "sqrt"
    close = epsilon(cause, kind)
    if exponent is not None and exponent < -2:
        # (1e-12) ** -4 is beyond every format; 0.01 ** -5 is not.
        close = "1e-2" if cause.half else "1e-6"
    if cause.backward:
        if exponent is not None and exponent >= 1:
            return overflow(cause)
        trap = where_trap(cause)
        if trap:
            return prescribe(cause, f"0 to {told} behind a mask", TRAP, 0.95, trap)
        text = "the derivative is infinite at 0: add an epsilon to the base"
        change = guard_all(cause, add_epsilon(cause, close))
        sure = 0.6 if exponent is None else 0.95
        return prescribe(cause, f"0 to {told} in backward", text, sure, change)
    base, output = cause.input(0) or Stat(), cause.output or Stat()
    broken = exponent is None or not float(exponent).is_integer()
    if base.negative and output.nan and broken:
        headline = f"negative base to {told}"
        if base.low < -slack(cause, base):
            text = (
                f"the base goes down to {figure(base.low)}: use x.sign() * x.abs() ** p if an odd "
                "function is meant, else make the base positive where it is computed"
            )
            return prescribe(cause, headline, text, 0.85)
        text = f"rounding took the base below 0 ({figure(base.low)}): clamp it"
        change = guard_all(cause, clamp_below(cause, close))
        return prescribe(cause, headline, text, 0.9, change)
    if base.zeros and output.inf and (exponent is None or exponent < 0):
        told = "a negative power" if exponent is None else told
        change = None if base.negative else guard_all(cause, clamp_below(cause, close))
        text = f"{told} of 0 is infinite: keep the base away from 0"
        return prescribe(cause, f"0 to {told}", text, 0.9, change)
    return overflow(cause)


def _exponent(cause: Cause) -> float | None:
    """The exponent where it is written out, at the one place there is."""
    site = only(places(cause))
    if site is None:
        return None
    if len(site.operands) == 1:
        written = site.keyword("exponent")
        return constant(written) if written else 2.0  # Tensor.square
    return constant(site.operands[1])


def angle(cause: Cause) -> Remedy:
    """atan2 and hypot where both arguments are 0: the direction is not defined."""
    return prescribe(
        cause,
        f"{cause.name}(0, 0) in backward" if cause.backward else f"{cause.name} of inf",
        "the derivative does not exist where both arguments are 0: move them away from it",
        0.9 if cause.backward else 0.4,
        _away(cause) if cause.backward else None,
    )


def _away(cause: Cause) -> Change | None:
    code, site = cause.statement, only(places(cause))
    if code is None or site is None or site.inplace or len(site.operands) != 2 or not code.torch:
        return None
    if not all(simple(operand) for operand in site.operands):
        return None
    a, b = map(code.text, site.operands)
    if cause.name == "hypot":
        new = f"{code.torch}.sqrt({a} ** 2 + {b} ** 2 + {epsilon(cause, 'sqrt')})"
        return Change(tuple(code.replace(site.node, new)), site.node)
    # atan2(0, 1) is 0 too, and its derivative is finite.
    new = f"{code.torch}.where(({a} == 0) & ({b} == 0), 1.0, {b})"
    return Change(tuple(code.replace(site.operands[1], new)), site.node)


RULES = {"pow": power, "atan2": angle, "hypot": angle}
