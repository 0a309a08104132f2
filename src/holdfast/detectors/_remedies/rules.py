"""Table of rules by operation, and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from . import (
    division,
    domain,
    losses,
    masking,
    origin,
    overflow,
    powers,
    reductions,
)
from .cause import Cause
from .prescription import Remedy, places
from .sites import Site, constant

Rule = Callable[[Cause], Remedy | None]

_RULES: Mapping[str, Rule] = {
    **domain.RULES,
    **powers.RULES,
    **division.RULES,
    **overflow.RULES,
    **masking.RULES,
    **reductions.RULES,
    **losses.RULES,
}
# What a statement may hold that makes a backward function bad which does not stand in it: the
# derivative of a norm is a division, and the derivative of that is another.
_SUSPECTS = ("norm", "sqrt", "rsqrt", "acos", "asin", "log", "std", "pow", "div")


def remedy(cause: Mapping[str, Any]) -> Remedy:
    """Return the remedy for a recorded cause; never raises, however damaged the record."""
    known = Cause.read(cause)
    if known.phase == "parameter":
        return origin.parameter(known)
    if known.phase == "input":
        return origin.batch(known)
    if not known.op:
        return origin.unknown(known)
    if known.name not in losses.RULES:
        earlier = origin.already_bad(known)
        if earlier:
            return earlier
    for ask in (reductions.second_derivative, _suspected, _ruled, overflow.overflow):
        found = ask(known)
        if found:
            return found
    return origin.unknown(known)


def _ruled(cause: Cause) -> Remedy | None:
    rule = _RULES.get(cause.name)
    return rule(cause) if rule else None


def _suspected(cause: Cause) -> Remedy | None:
    """A backward function that is not written in its statement: blame the one that could be."""
    if not cause.backward or cause.statement is None or cause.half or places(cause):
        return None
    found = [n for n in _SUSPECTS if any(_harmful(n, site) for site in places(cause, n))]
    if len(found) != 1:
        return None
    result = _ruled(replace(cause, name=found[0]))
    return replace(result, confidence=round(result.confidence * 0.8, 3)) if result else None


def _harmful(name: str, site: Site) -> bool:
    """Whether it can be infinite in backward at all: ``x ** 2`` and ``x / 4`` cannot."""
    if name not in ("pow", "div"):
        return True
    written = constant(site.operands[1]) if len(site.operands) > 1 else 2.0
    return written is None or (name == "pow" and written < 1)
