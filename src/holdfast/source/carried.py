"""What the source says of values that live across steps: carried on by a loop, or counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from .names import exposed, reads, surely_writes, writes
from .statements import functions_around, scope_at, statement_at
from .syntax import FUNCTIONS, blocks_of, called, holds


@lru_cache(maxsize=64)
def carried_by_loop(file: str, line: int) -> dict[str, int]:
    """Those of the loop around a line, with the line that gives them their next value.

    Such a name is read before it is written anew, and what is computed with it goes into
    ``backward()`` or into the statement at the line. Outside of a loop the function is one turn;
    then only attributes (``self.h``) live on.
    """
    found = statement_at(file, line)
    if found is None:
        return {}
    if found.loops:
        return _carried([found.loops[-1]], line)
    function = next(reversed(functions_around(file, line)), None)
    return {} if function is None else _of_attributes(function)


@lru_cache(maxsize=64)
def carried_by_function(file: str, first: int) -> dict[str, int]:
    """Attributes that one call of the function that begins at a line leaves to the next one."""
    scope = scope_at(file, first)
    return _of_attributes(scope) if isinstance(scope, FUNCTIONS) else {}


@lru_cache(maxsize=64)
def counted_by_function(file: str, first: int) -> dict[str, int]:
    """Attributes that the function adds to (``self.calls += 1``), with the line."""
    scope = scope_at(file, first)
    return {
        ast.unparse(part.target): part.lineno
        for part in (ast.walk(scope) if isinstance(scope, FUNCTIONS) else ())
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Attribute)
    }


def _of_attributes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, int]:
    return {name: at for name, at in _carried(function.body, 0).items() if "." in name}


def _carried(body: list[ast.stmt], line: int) -> dict[str, int]:
    steps = list(_leaves(body))
    needed = set[str]()
    written = set[str]()
    for statement in body:
        needed |= exposed(statement) - written
        written |= surely_writes(statement)
    changed = {name: step.lineno for step in steps for name in writes(step)}
    return {name: changed[name] for name in needed & changed.keys() if _is_used(steps, name, line)}


def _is_used(steps: list[ast.stmt], name: str, line: int) -> bool:
    """Whether what is computed with it goes on into the step; not a sum that is only printed."""
    tainted = {name}
    for step in steps:
        if reads(step) & tainted:
            if holds(step, line) or isinstance(step, ast.Return) or _calls_backward(step):
                return True
            tainted |= writes(step)
        else:
            tainted -= surely_writes(step)
    return False


def _calls_backward(step: ast.stmt) -> bool:
    return any(isinstance(n, ast.Call) and called(n) == "backward" for n in ast.walk(step))


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that hold no others, in the order of their lines."""
    for statement in body:
        blocks = list(blocks_of(statement))
        if not blocks:
            yield statement
        for block in blocks:
            yield from _leaves(block)
