"""The loop and the blocks around a line of the user's code.

Where a ``function`` is asked for it is the first line of its code, 0 for a module.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from .files import nodes_of
from .statements import own_statements, scope_at, statement_at
from .syntax import COMPREHENSIONS, LOOPS, WITHS, holds, is_path


@dataclass(frozen=True, slots=True)
class LoopAround:
    """The loop that asks a loader for its next batch.

    Args:
        first: line of its head.
        last: last line of its body.
        around: targets of the ``for`` loops around it, with their lines.
    """

    first: int
    last: int
    around: tuple[tuple[str, int], ...]


def loop_around(file: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost loop around a line, in its function; (0, 0): none."""
    found = statement_at(file, line)
    return _span(found.loops[-1]) if found is not None and found.loops else (0, 0)


def loop_of(file: str, line: int) -> tuple[int, int]:
    """The loop whose head stands at a line; else the one around it."""
    found = statement_at(file, line)
    if found is not None and isinstance(found.node, LOOPS):
        return _span(found.node)
    return loop_around(file, line)


@lru_cache(maxsize=256)
def loop_at(file: str, function: int, line: int) -> LoopAround:
    """The loop at a line of a scope."""
    loops = [
        node
        for node in own_statements(scope_at(file, function))
        if isinstance(node, LOOPS) and holds(node, line)
    ]
    loops.sort(key=_outermost_first)
    if not loops:
        return LoopAround(line, line, ())
    inner = loops[-1]
    # Asked for by `for x in loader` the head is at work; by `next(it)` a line of the body.
    heads = isinstance(inner, ast.For) and line < inner.body[0].lineno
    around = [one for one in loops if isinstance(one, ast.For) and not (heads and one is inner)]
    targets = tuple(
        (name.id, one.lineno)
        for one in around
        for name in ast.walk(one.target)
        if isinstance(name, ast.Name)
    )
    return LoopAround(*_span(inner), targets)


@lru_cache(maxsize=256)
def blocks_around(file: str, function: int, line: int, head: int) -> tuple[ast.stmt, ...]:
    """Loops and ``with`` whose body a line of a scope is in, outermost first.

    The loop whose head is at line ``head`` counts too where the line is in its head.
    """
    found = [
        node
        for node in own_statements(scope_at(file, function))
        if isinstance(node, LOOPS | WITHS)
        and (node.body[0].lineno <= line <= (node.body[-1].end_lineno or line))
        | (node.lineno == head and node.lineno <= line < node.body[0].lineno)
    ]
    return tuple(sorted(found, key=_outermost_first))


@lru_cache(maxsize=64)
def for_at(file: str, line: int) -> ast.For:
    """The ``for`` whose head begins at a line of a file."""
    return next(one for one in nodes_of(file) if isinstance(one, ast.For) and one.lineno == line)


@lru_cache(maxsize=256)
def asks_alone(file: str, function: int, line: int) -> bool:
    """Whether the statement at a line begins with ``next(...)``: nothing is read before it."""
    inside = [one for one in own_statements(scope_at(file, function)) if holds(one, line)]
    one = max(inside, key=_outermost_first, default=None)
    if not isinstance(one, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return False
    value: ast.expr | None = one.value
    while True:
        if isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        else:
            break
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    return value.func.id == "next" and all(is_path(one) for one in value.args[:1])


@lru_cache(maxsize=256)
def in_handler(file: str, function: int, line: int) -> bool:
    """Whether a line of a scope is in an ``except`` or a ``finally``."""
    scope = own_statements(scope_at(file, function))
    tries = (one for one in scope if isinstance(one, ast.Try))
    return any(holds(part, line) for one in tries for part in (*one.handlers, *one.finalbody))


@lru_cache(maxsize=256)
def in_comprehension(file: str, function: int, line: int) -> bool:
    """Whether a line of a scope holds a comprehension, which keeps its result to itself."""
    return any(
        isinstance(node, COMPREHENSIONS) and holds(node, line)
        for statement in own_statements(scope_at(file, function))
        if holds(statement, line) and not hasattr(statement, "body")
        for node in ast.walk(statement)
    )


def _span(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _outermost_first(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, -(node.end_lineno or 0)
