"""Division by zero, by something tiny, and of zero by zero."""

from __future__ import annotations

from .cause import Cause, Stat
from .domain import already_infinite
from .fusions import fusion
from .guards import clamp_below, lost_epsilon, related
from .overflow import overflow
from .prescription import (
    Change,
    Remedy,
    amount,
    epsilon,
    figure,
    only,
    places,
    prescribe,
)
from .signs import (
    counts,
    counts_as_number,
    made_by_root,
    never_negative,
)
from .sites import Site, called, constant
from .traps import TRAP, where_trap


def division(cause: Cause) -> Remedy | None:
    """Rule for a / b and 1 / b, by the value of the divisor."""
    site = _site(cause)
    if cause.backward:
        return _backward(cause, site)
    if cause.name == "reciprocal":
        above, below = None, cause.input(0)
    else:
        above, below = cause.input(0), cause.input(1)
        if above and not below:
            return _by_number(cause, site, above)
    below, output = below or Stat(), cause.output or Stat()
    if not below.zeros and any(stat.inf for stat in cause.inputs):
        return already_infinite(cause)
    change = _clamped(cause, site, above, below)
    if below.zeros:
        headline = "0 / 0" if above and above.zeros and output.nan else "division by 0"
        text = f"{amount(below.zeros, below.numel, 'the divisor is', 'divisors are')} 0"
        better = fusion(cause)
        if better:
            return prescribe(cause, headline, f"{text}, and {better[1]}", 0.95, better[0])
        if change:
            return prescribe(cause, headline, f"{text}: clamp from below", 0.95, change)
        return prescribe(cause, headline, f"{text}: {_by_hand(cause, site, below)}", 0.85)
    tiny = below.negative or below.low < float(epsilon(cause, "div"))
    if output.inf and below.numel and tiny:
        size = "tiny" if below.negative else f"down to {figure(below.low)}"
        text = f"the divisor is {size}, and the quotient leaves the range of {cause.dtype}"
        text += ": clamp from below" if change else f": {_by_hand(cause, site, below)}"
        return prescribe(cause, "division by almost 0", text, 0.8, change)
    return overflow(cause)


def _backward(cause: Cause, site: Site | None) -> Remedy | None:
    code, operand = cause.statement, _divisor(site)
    trap = where_trap(cause, operand)
    if trap:
        return prescribe(cause, "division by 0 behind a mask", TRAP, 0.95, trap)
    if code is None or site is None:
        return None
    change = None
    # The divisor is what is kept first of the forward pass, if anything was recorded of it.
    below = cause.inputs[0] if len(cause.inputs) > 1 else Stat()
    divisor = site.operands[operand]
    if not below.negative and never_negative(code, divisor, None, below):
        change = None if made_by_root(code, divisor) else _clamp(cause, site, below)
    text = (
        "the derivative divides by the square of the divisor, which is 0 or tiny where the result "
        "is masked afterwards"
    )
    text += ": clamp from below" if change else f": {_by_hand(cause, site, below)}"
    return prescribe(cause, "division by 0 in backward", text, 0.8, change)


def _by_number(cause: Cause, site: Site | None, above: Stat) -> Remedy | None:
    """The divisor is no floating tensor: a count, a length, a number."""
    if above.bad:
        return already_infinite(cause)
    code, output = cause.statement, cause.output or Stat()
    divisor = site.operands[1] if site and len(site.operands) > 1 else None
    large = output.inf and not output.nan and above.largest > 1e-3 * cause.limit
    if constant(divisor) or large:
        return overflow(cause)
    headline = "0 / 0" if output.nan else "division by 0"
    text = "the divisor is the number 0: use max(count, 1), or skip the empty batch"
    change = None
    if code and site and divisor is not None:
        single = above.numel <= 1 and output.numel <= 1
        total = called(divisor, "sum") or called(divisor, "count_nonzero")
        if total and total.plain:
            change = Change(tuple(code.append(divisor, ".clamp_min(1)")), site.node)
        elif counts_as_number(code, divisor, single=single):
            new = f"max({code.text(divisor)}, 1)"
            change = Change(tuple(code.replace(divisor, new)), site.node)
    return prescribe(cause, headline, text, 0.85, change)


def _by_hand(cause: Cause, site: Site | None, below: Stat) -> str:
    """What to do where no change can be offered."""
    if cause.statement and site and made_by_root(cause.statement, site.operands[_divisor(site)]):
        return (
            "add an epsilon inside the square root that computes it; a clamp after the root leaves "
            "its gradient NaN"
        )
    if below.negative:
        return (
            "it takes both signs, so a clamp does not help; use torch.where(d == 0, 1e-12, d), or "
            "drop the entries without a value"
        )
    return "clamp it from below if it is never negative, else use torch.where(d == 0, 1e-12, d)"


def _site(cause: Cause) -> Site | None:
    """The only possible division: not by a literal number; ``1 / x`` for reciprocal."""
    code = cause.statement
    found = [s for s in places(cause) if len(s.operands) < 2 or not constant(s.operands[1])]
    if len(found) > 1:
        found = [s for s in found if _inverts(s) == (cause.name == "reciprocal")] or found
    # Divided by the same thing twice: both need the same change.
    if code and len({code.text(s.operands[_divisor(s)]) for s in found}) == 1:
        found = found[:1]
    return only(found)


def _inverts(site: Site) -> bool:
    """Whether a number stands above: torch computes ``2 / x`` as ``x.reciprocal() * 2``."""
    return len(site.operands) < 2 or constant(site.operands[0]) is not None


def _divisor(site: Site | None) -> int:
    return 1 if site and len(site.operands) > 1 else 0


def _clamped(cause: Cause, site: Site | None, above: Stat | None, below: Stat) -> Change | None:
    code = cause.statement
    if code is None or site is None or below.bad:
        return None
    divisor = site.operands[_divisor(site)]
    # An epsilon in the source is intended, whatever the sign.
    meant = lost_epsilon(cause, divisor) is not None
    if not meant and (below.negative or not never_negative(code, divisor, above, below)):
        return None
    if made_by_root(code, divisor):
        return None
    return _clamp(cause, site, below)


def _clamp(cause: Cause, site: Site, below: Stat | None) -> Change | None:
    code, operand = cause.statement, _divisor(site)
    if code is None or (site.inplace and operand == 0):
        return None
    divisor = site.operands[operand]
    bound = "1" if counts(divisor, below) else epsilon(cause, "div")
    edits = clamp_below(cause, bound, operand)(code, site)
    return Change((*edits, *related(code, [divisor], bound)), site.node)


RULES = {"div": division, "reciprocal": division}
