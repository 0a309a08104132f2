"""Reads the user's source: the statement at a line, what it calls, and the loop around it."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

LOOPS = ast.For | ast.While | ast.AsyncFor
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, or the head of one that has a body."""

    first: int
    text: str
    calls: tuple[str, ...] = ()
    """Dotted names of what it calls, ``?`` for what has no name."""


class _Found(NamedTuple):
    node: ast.stmt
    loop: tuple[int, int]
    """First and last line of the innermost loop around it; (0, 0) for none."""


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """A file, parsed; None where that cannot be done."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=64)
def _statements(file: str) -> list[_Found]:
    """Every statement of a file, the outer ones first."""
    found: list[_Found] = []
    tree = tree_of(file)
    todo: list[tuple[ast.AST, tuple[int, int]]] = [(tree, (0, 0))] if tree else []
    while todo:
        node, loop = todo.pop(0)
        for child in ast.iter_child_nodes(node):
            inner = loop
            if isinstance(child, ast.stmt):
                found.append(_Found(child, loop))
            if isinstance(child, _FUNCTIONS):
                inner = (0, 0)
            elif isinstance(child, LOOPS):
                inner = (child.lineno, child.end_lineno or child.lineno)
            todo.append((child, inner))
    return found


def _innermost(file: str, line: int) -> _Found | None:
    best: _Found | None = None
    for found in _statements(file):
        node = found.node
        if not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if best is None or node.lineno > best.node.lineno or _size(node) < _size(best.node):
            best = found
    return best


def _size(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno


@lru_cache(maxsize=1024)
def loop_around(file: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost loop around a line, in its function; (0, 0): none."""
    found = _innermost(file, line)
    return found.loop if found is not None else (0, 0)


@lru_cache(maxsize=1024)
def loop_of(file: str, line: int) -> tuple[int, int]:
    """The loop whose head stands at a line; else the one around it."""
    found = _innermost(file, line)
    if found is not None and isinstance(found.node, LOOPS):
        return found.node.lineno, found.node.end_lineno or found.node.lineno
    return found.loop if found is not None else (0, 0)


@lru_cache(maxsize=1024)
def statement(file: str, line: int) -> Statement:
    """The innermost statement at a line."""
    found = _innermost(file, line)
    if found is None:
        return Statement(line, linecache.getline(file, line).strip())
    node = found.node
    last, parts = node.end_lineno or node.lineno, list[ast.AST]([node])
    if hasattr(node, "body"):
        parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr | ast.withitem)]
        last = max([node.lineno, *(getattr(n, "end_lineno", 0) or 0 for n in parts)])
    calls = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]
    text = " ".join(linecache.getline(file, n).strip() for n in range(node.lineno, last + 1))
    return Statement(node.lineno, text, tuple(_dotted(call.func) for call in calls))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))
