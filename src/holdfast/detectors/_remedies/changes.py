"""Changes that keep a statement finite: a clamp or an epsilon, at every place that needs one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ...records.nonfinite import Cause
from ...source.edits import Edit, Statement
from .cause import statement_of
from .prescription import StatementEdit, epsilon, places
from .sites import Site, radicand, simple, sites

# More places than this in one statement are a program, not a formula.
_PLACES = 3
# What is infinite at 0: the same argument may go into several of them.
_INFINITE_AT_ZERO = ("log", "log2", "log10", "rsqrt", "reciprocal", "div")

Guard = Callable[[Statement, Site], list[Edit]]


def guard_all(cause: Cause, guard: Guard) -> StatementEdit | None:
    """The same guard at each place of the operation.

    Which of two logs met the zero is not recorded; a guard that leaves every valid value as it
    is may stand in both. Of operators and bare names only one: ``d ** 0.5`` may be a number.
    """
    code, found = statement_of(cause), places(cause)
    found = [site for site in found if site.plain] or found
    if code is None or not 0 < len(found) <= _PLACES or any(site.inplace for site in found):
        return None
    if len(found) > 1 and not all(site.plain for site in found):
        return None
    edits = [edit for site in found for edit in guard(code, site)]
    return StatementEdit(tuple(edits), found[0].node)


def clamp_all(cause: Cause, bound: str) -> StatementEdit | None:
    """Clamp the argument from below, at each place and wherever the same one is divided by."""
    change = guard_all(cause, lambda code, site: clamped(cause, code, site.operands[0], bound))
    code = statement_of(cause)
    if change is None or code is None:
        return change
    done = [site.operands[0] for site in places(cause)]
    return StatementEdit((*change.edits, *clamped_elsewhere(code, done, bound)), change.node)


def clamped(cause: Cause, code: Statement, operand: ast.expr, bound: str) -> list[Edit]:
    """An operand with a clamp from below; where it is a root, an epsilon inside of it."""
    # Behind the clamp the gradient is 0, and 0 times the infinite slope of a root is NaN.
    root = radicand(operand)
    if root is not None:
        return code.add(root, epsilon(cause, "sqrt"))
    return code.append(operand, f".clamp_min({bound})")


def clamped_elsewhere(code: Statement, done: Iterable[ast.expr], bound: str) -> list[Edit]:
    """The same clamp for other uses of these arguments that are infinite at 0 too."""
    seen = set(done)
    texts = {code.text(node) for node in seen if simple(node)}
    edits: list[Edit] = []
    for operand in (s.operands[-1] for name in _INFINITE_AT_ZERO for s in sites(code, name)):
        if operand not in seen and code.text(operand) in texts:
            seen.add(operand)
            edits += code.append(operand, f".clamp_min({bound})")
    return edits
