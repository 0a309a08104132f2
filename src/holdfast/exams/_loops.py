"""Reads the user's source: the loop around a line, what a statement calls, what it lets grow."""

from __future__ import annotations

import ast
import linecache
import os
from dataclasses import dataclass, field
from functools import lru_cache

_GROWING_METHODS = {"append", "extend", "add", "update", "insert", "appendleft"}
_JOINING = {"cat", "concat", "concatenate", "hstack", "vstack", "append"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, or the head of one that has a body."""

    first: int = 0
    last: int = 0
    text: str = ""
    calls: tuple[str, ...] = ()
    """Dotted names of what it calls, ``?`` for what has no name."""
    names: frozenset[str] = field(default_factory=frozenset[str])
    grows: str = ""
    """The name it lets grow, if it does."""


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """A file, parsed; None where that cannot be done."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def kept(file: str, kind: str) -> int:
    """The first line that makes an object of a class and gives it a name; 0 where none does."""
    for node in ast.walk(tree_of(file) or ast.Module([], [])):
        made = node.value if isinstance(node, ast.Assign) else None
        if isinstance(made, ast.Call) and ast.unparse(made.func).split(".")[-1] == kind:
            return made.lineno
    return 0


def shown(file: str) -> str:
    """A path as seen from the working directory, where it lies below it."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except FileNotFoundError:
        return file  # the directory is gone


@lru_cache(maxsize=1024)
def loop_around(file: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost loop around a line, in its function; (0, 0): none."""
    tree = tree_of(file)
    found = (0, 0)
    todo: list[tuple[ast.AST, tuple[int, int]]] = [(tree, (0, 0))] if tree else []
    while todo:
        node, loop = todo.pop()
        for child in ast.iter_child_nodes(node):
            first, last = getattr(child, "lineno", 0), getattr(child, "end_lineno", 0) or 0
            if first and not first <= line <= last:
                continue
            inner = loop
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner = (0, 0)
            elif isinstance(child, ast.For | ast.While | ast.AsyncFor) and line > first:
                inner = (first, last)
            if isinstance(child, ast.stmt):
                found = inner
            todo.append((child, inner))
    return found


@lru_cache(maxsize=1024)
def statement(file: str, line: int) -> Statement:
    """The innermost statement at a line."""
    tree = tree_of(file)
    best: ast.stmt | None = None
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if best is None or node.lineno > best.lineno or _size(node) < _size(best):
            best = node
    if best is None:
        return Statement(line, line, linecache.getline(file, line).strip())
    head = [n for n in ast.iter_child_nodes(best) if isinstance(n, ast.expr | ast.withitem)]
    parts = [best] if not hasattr(best, "body") else head
    nodes = [n for part in parts for n in ast.walk(part)]
    last = best.end_lineno or best.lineno
    if hasattr(best, "body"):
        last = max([best.lineno, *(getattr(n, "end_lineno", 0) or 0 for n in head)])
    text = " ".join(linecache.getline(file, n).strip() for n in range(best.lineno, last + 1))
    return Statement(
        best.lineno,
        last,
        text,
        tuple(_dotted(n.func) for n in nodes if isinstance(n, ast.Call)),
        frozenset(n.id for n in nodes if isinstance(n, ast.Name)),
        _grown(best),
    )


def _size(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def _grown(node: ast.stmt) -> str:
    """``x.append(...)``, ``x += [...]``, ``x[k] = ...``, ``x = cat([x, ...])``: gives ``x``."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in _GROWING_METHODS:
            return _dotted(called.value)
    if isinstance(node, ast.AugAssign):
        many = isinstance(node.value, ast.List | ast.ListComp | ast.Tuple | ast.Call)
        return _dotted(node.target) if many and isinstance(node.op, ast.Add) else ""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return _dotted(target.value)
        name = _dotted(target)
        inside = [n for n in ast.walk(node.value) if isinstance(n, ast.Name | ast.Attribute)]
        joins = isinstance(node.value, ast.BinOp) or any(
            _dotted(n.func).split(".")[-1] in _JOINING
            for n in ast.walk(node.value)
            if isinstance(n, ast.Call)
        )
        if joins and any(_dotted(n) == name for n in inside):
            return name
    return ""
