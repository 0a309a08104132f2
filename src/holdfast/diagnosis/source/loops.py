"""Reads the user's source: the statement at a line, what it calls, and the loop around it."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

LOOPS = ast.For | ast.While | ast.AsyncFor
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, or the head of one that has a body."""

    first: int
    text: str
    calls: tuple[str, ...] = ()
    """Dotted names of what it calls, ``?`` for what has no name."""


class Found(NamedTuple):
    """A statement and what stands around it."""

    node: ast.stmt
    loop: tuple[int, int]
    """First and last line of the innermost loop around it, in its function; (0, 0) for none."""
    functions: tuple[str, ...]
    """Names of the functions around it, outermost first."""


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module:
    """A file, parsed; empty where that cannot be done."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=64)
def nodes_of(file: str) -> list[ast.AST]:
    """Every node of a file, walked through once: that takes as long as to parse it."""
    return list(ast.walk(tree_of(file)))


@lru_cache(maxsize=64)
def statements(file: str) -> list[Found]:
    """Every statement of a file, in the order of its lines."""
    found: list[Found] = []

    def visit(node: ast.AST, loop: tuple[int, int], functions: tuple[str, ...]) -> None:
        if isinstance(node, ast.stmt):
            found.append(Found(node, loop, functions))
        if isinstance(node, _NAMED):
            loop, functions = (0, 0), (*functions, node.name)
        elif isinstance(node, LOOPS):
            loop = node.lineno, node.end_lineno or node.lineno
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                visit(child, loop, functions)

    visit(tree_of(file), (0, 0), ())
    return found


@lru_cache(maxsize=1024)
def innermost(file: str, line: int) -> Found | None:
    """The innermost statement around a line."""
    best = None
    for found in statements(file):
        if found.node.lineno <= line <= (found.node.end_lineno or 0):
            best = found
    return best


def loop_around(file: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost loop around a line, in its function; (0, 0): none."""
    found = innermost(file, line)
    return found.loop if found is not None else (0, 0)


def loop_of(file: str, line: int) -> tuple[int, int]:
    """The loop whose head stands at a line; else the one around it."""
    found = innermost(file, line)
    if found is not None and isinstance(found.node, LOOPS):
        return found.node.lineno, found.node.end_lineno or found.node.lineno
    return loop_around(file, line)


def function_at(file: str, line: int) -> str:
    """The innermost function around a line; empty at the top of a file."""
    found = innermost(file, line)
    return found.functions[-1] if found is not None and found.functions else ""


def head_of(file: str, line: int) -> list[int | str]:
    """Number and text of the line at which the function around a line begins; empty for none."""
    around = [
        node
        for node, _, _ in statements(file)
        if isinstance(node, _NAMED) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not around:
        return []
    first = around[-1].lineno
    return [first, linecache.getline(file, first).rstrip("\n")]


@lru_cache(maxsize=64)
def keeps_graphs(file: str) -> bool:
    """Whether a file asks a backward pass to keep its graph."""
    return any(isinstance(n, ast.keyword) and n.arg == "retain_graph" for n in nodes_of(file))


def assigned_at(file: str, name: str) -> int:
    """The first line that gives a variable or an attribute its value; 0 where none does."""
    for node, _, _ in statements(file):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if getattr(target, "attr", getattr(target, "id", "")) == name:
                return node.lineno
    return 0


@lru_cache(maxsize=1024)
def statement(file: str, line: int) -> Statement:
    """The innermost statement at a line."""
    found = innermost(file, line)
    if found is None:
        return Statement(line, linecache.getline(file, line).strip())
    node, parts = found.node, parts_of(found.node)
    last = node.end_lineno or node.lineno
    if hasattr(node, "body"):
        last = max([node.lineno, *(getattr(n, "end_lineno", 0) or 0 for n in parts)])
    calls = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]
    text = " ".join(linecache.getline(file, n).strip() for n in range(node.lineno, last + 1))
    return Statement(node.lineno, text, tuple(_dotted(call.func) for call in calls))


def parts_of(node: ast.stmt) -> list[ast.AST]:
    """A statement, or the expressions in the head of one that has a body."""
    if not hasattr(node, "body"):
        return [node]
    return [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr | ast.withitem)]


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))
