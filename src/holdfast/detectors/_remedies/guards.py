"""Make arguments safe with a clamp or an epsilon, at every place where they do harm."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from .cause import Cause
from .prescription import Change, epsilon, places
from .signs import radicand
from .sites import (
    Site,
    called,
    constant,
    simple,
    sites,
)
from .source import Edit, Statement

# More places than this in one statement are a program, not a formula.
_PLACES = 3
# What is infinite at 0 as well: the same argument may go into several of them.
_RELATED = ("log", "log2", "log10", "rsqrt", "reciprocal", "div")
# In fp16 an epsilon that is added passes gradients on, which 1/1e-6 would take beyond 65504.
_HALF_ADDED = "1e-4"

Guard = Callable[[Statement, Site], list[Edit]]


def guard_all(cause: Cause, guard: Guard, name: str = "") -> Change | None:
    """The same guard at each place of the operation.

    Which of two logs met the zero is not recorded; a guard that leaves every valid value as it
    is may stand in both. Of operators and bare names only one: ``d ** 0.5`` may be a number.
    """
    code, found = cause.statement, places(cause, name)
    found = [site for site in found if site.plain] or found
    found = [site for site in found if not _guarded(cause, site.operands[0])] or found
    if code is None or not 0 < len(found) <= _PLACES or any(site.inplace for site in found):
        return None
    if len(found) > 1 and not all(site.plain for site in found):
        return None
    edits = [edit for site in found for edit in guard(code, site)]
    return Change(tuple(edits), found[0].node)


def clamp_all(cause: Cause, bound: str, index: int = 0) -> Change | None:
    """Clamp an operand from below, at each place and wherever the same one is divided by."""
    change = guard_all(cause, clamp_below(cause, bound, index))
    code = cause.statement
    if change is None or code is None:
        return change
    guarded = [site.operands[index] for site in places(cause) if index < len(site.operands)]
    return Change((*change.edits, *related(code, guarded, bound)), change.node)


def related(code: Statement, guarded: Iterable[ast.expr], bound: str) -> list[Edit]:
    """The same clamp for other uses of these arguments that are infinite at 0 too."""
    done = set(guarded)
    texts = {code.text(node) for node in done if simple(node)}
    edits: list[Edit] = []
    for name in _RELATED:
        for site in sites(code, name):
            operand = site.operands[-1] if name == "div" else site.operands[0]
            if operand in done or code.text(operand) not in texts:
                continue
            if name == "div" and len(site.operands) != 2:
                continue
            done.add(operand)
            edits += code.append(operand, f".clamp_min({bound})")
    return edits


def clamp_below(cause: Cause, bound: str, index: int = 0) -> Guard:
    """Clamp an operand from below; an epsilon that is zero in this format is replaced."""

    def guard(code: Statement, site: Site) -> list[Edit]:
        if index >= len(site.operands):
            return []
        operand = site.operands[index]
        lost = lost_epsilon(cause, operand)
        if lost is not None:
            added = isinstance(operand, ast.BinOp) and cause.half
            return code.replace(lost, _HALF_ADDED if added else bound)
        # Behind the clamp the gradient is 0, and 0 times the infinite slope of a root is NaN.
        root = radicand(operand)
        if root is not None:
            return code.add(root, epsilon(cause, "sqrt"))
        return code.append(operand, f".clamp_min({bound})")

    return guard


def add_epsilon(cause: Cause, small: str) -> Guard:
    """Add to the first operand; an epsilon that is zero in this format is replaced."""

    def guard(code: Statement, site: Site) -> list[Edit]:
        lost = lost_epsilon(cause, site.operands[0])
        return code.replace(lost, small) if lost else code.add(site.operands[0], small)

    return guard


def lost_epsilon(cause: Cause, node: ast.AST) -> ast.AST | None:
    """The constant in ``x + 1e-12`` or ``x.clamp(min=1e-12)`` when the format stores it as zero."""
    candidates: list[ast.AST | None] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        candidates += [node.left, node.right]
    for name in ("clamp", "clamp_min", "clip"):
        site = called(node, name)
        if site:
            candidates += [site.keyword("min"), *site.operands[1:2]]
    for candidate in candidates:
        value = constant(candidate)
        if value is not None and cause.vanishes(value):
            return candidate
    return None


def _guarded(cause: Cause, node: ast.AST) -> bool:
    """Whether somebody has already taken care: ``x + 1e-6``, ``x.clamp(min=...)``."""
    if lost_epsilon(cause, node) is not None:
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return any((constant(side) or 0.0) > 0 for side in (node.left, node.right))
    return any(called(node, name) for name in ("clamp", "clamp_min", "clamp_max", "clip"))
