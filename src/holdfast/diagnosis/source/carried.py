"""What the source says of values that live across steps: carried on by a loop, or counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from .loops import LOOPS, innermost, nodes_of
from .slicing import called, exposed, reads, surely_writes, writes

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=64)
def carried_by_loop(file: str, line: int) -> dict[str, int]:
    """Those of the loop around a line, with the line that gives them their next value.

    Such a name is read before it is written anew, and what is computed with it goes into
    ``backward()`` or into the statement at the line. Outside of a loop the function is one turn;
    then only attributes (``self.h``) live on.
    """
    found = innermost(file, line)
    if found is None:
        return {}
    loop = next((n for n in _around(file, line, LOOPS) if n.lineno == found.loop[0]), None)
    if isinstance(loop, LOOPS):
        return _carried([loop], line)
    function = next(_around(file, line, _FUNCTIONS), None)
    return {} if function is None else carried_by_function(file, function.lineno)


@lru_cache(maxsize=64)
def carried_by_function(file: str, line: int) -> dict[str, int]:
    """Attributes that one call of the function at a line leaves to the next one."""
    node = _function_from(file, line)
    found = {} if node is None else _carried(node.body, 0)
    return {name: at for name, at in found.items() if "." in name}


@lru_cache(maxsize=64)
def counted_by_function(file: str, line: int) -> dict[str, int]:
    """Attributes that the function at a line adds to (``self.calls += 1``), with the line."""
    node = _function_from(file, line)
    return {
        ast.unparse(part.target): part.lineno
        for part in (ast.walk(node) if node is not None else ())
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Attribute)
    }


@lru_cache(maxsize=64)
def calls_of(file: str, name: str) -> list[int]:
    """The lines of a file on which a function of that name is called."""
    return [n.lineno for n in nodes_of(file) if isinstance(n, ast.Call) and called(n) == name]


def _function_from(file: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in nodes_of(file):
        if isinstance(node, _FUNCTIONS):
            first = min((node.lineno, *(d.lineno for d in node.decorator_list)))
            if first <= line < node.body[0].lineno:
                return node
    return None


def _around(file: str, line: int, kinds: type | object) -> Iterator[ast.stmt]:
    """Statements of some kinds around a line, the innermost first."""
    around = [
        node
        for node in nodes_of(file)
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)  # type: ignore[arg-type,attr-defined]
    ]
    return iter(sorted(around, key=lambda node: -node.lineno))  # type: ignore[attr-defined,arg-type]


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
            here = step.lineno <= line <= (step.end_lineno or 0)
            if here or isinstance(step, ast.Return) or _calls_backward(step):
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
        parts = [p for n in ("body", "orelse", "finalbody") if (p := getattr(statement, n, None))]
        parts += [handler.body for handler in getattr(statement, "handlers", [])]
        if not parts or isinstance(statement, ast.ClassDef | _FUNCTIONS):
            yield statement
        for part in parts if not isinstance(statement, ast.ClassDef | _FUNCTIONS) else ():
            yield from _leaves(part)
