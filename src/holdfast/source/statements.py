"""The statement at a line of the user's code, with the loops and functions around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .files import line_at, nodes_of, tree_of
from .syntax import FUNCTIONS, LOOPS, dotted, head_of, holds

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
"""What has variables of its own."""


class FoundStatement(NamedTuple):
    """A statement and what stands around it, the innermost last."""

    node: ast.stmt
    loops: tuple[ast.For | ast.While | ast.AsyncFor, ...]
    """The loops around it in its function."""
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions around it."""
        return tuple(function.name for function in self.functions)


@dataclass(frozen=True, slots=True)
class StatementText:
    """A statement, or the head of one that has a body, as it is written."""

    first: int
    text: str
    calls: tuple[str, ...] = ()
    """Dotted names of what it calls, ``?`` for what has no name."""


@lru_cache(maxsize=64)
def statements(file: str) -> list[FoundStatement]:
    """Every statement of a file, in the order of its lines."""
    found: list[FoundStatement] = []

    def visit(node: ast.AST, around: FoundStatement) -> None:
        if isinstance(node, ast.stmt):
            found.append(around._replace(node=node))
        if isinstance(node, FUNCTIONS):
            around = FoundStatement(node, (), (*around.functions, node))
        elif isinstance(node, LOOPS):
            around = around._replace(loops=(*around.loops, node))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                visit(child, around)

    visit(tree_of(file), FoundStatement(ast.Pass(), (), ()))
    return found


@lru_cache(maxsize=1024)
def statements_around(file: str, line: int) -> tuple[FoundStatement, ...]:
    """The statements that a line is in, functions and classes included, the innermost last."""
    return tuple(found for found in statements(file) if holds(found.node, line))


def statement_at(file: str, line: int) -> FoundStatement | None:
    """The innermost statement around a line."""
    around = statements_around(file, line)
    return around[-1] if around else None


@lru_cache(maxsize=1024)
def text_at(file: str, line: int) -> StatementText:
    """The innermost statement at a line, on one line."""
    found = statement_at(file, line)
    if found is None:
        return StatementText(line, line_at(file, line).strip())
    node, parts = found.node, head_of(found.node)
    last = node.end_lineno or node.lineno
    if hasattr(node, "body"):
        last = max([node.lineno, *(getattr(n, "end_lineno", 0) or 0 for n in parts)])
    calls = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]
    text = " ".join(line_at(file, n).strip() for n in range(node.lineno, last + 1))
    return StatementText(node.lineno, text, tuple(dotted(call.func) for call in calls))


def expression_at(file: str, position: tuple[int | None, ...]) -> ast.expr | None:
    """The expression at a position of bytecode: first and last line, first and last column."""
    for node in nodes_of(file):
        if isinstance(node, ast.expr) and position == (
            *(node.lineno, node.end_lineno),
            *(node.col_offset, node.end_col_offset),
        ):
            return node
    return None


def functions_around(file: str, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that a line is in, their heads included, the innermost last."""
    nodes = (found.node for found in statements_around(file, line))
    return [node for node in nodes if isinstance(node, FUNCTIONS)]


def function_at(file: str, line: int) -> str:
    """The name of the innermost function around a line; empty at the top of a file."""
    return next((node.name for node in reversed(functions_around(file, line))), "")


def function_head(file: str, line: int) -> tuple[int, str] | tuple[()]:
    """Number and text of the line at which the function around a line begins; empty for none."""
    first = next((node.lineno for node in reversed(functions_around(file, line))), 0)
    return (first, line_at(file, first)) if first else ()


@lru_cache(maxsize=256)
def scope_at(file: str, first: int) -> Scope | None:
    """The function whose code begins at a line, its decorators included; the file for line 0."""
    if not first:
        return tree_of(file)
    for node in nodes_of(file):
        if isinstance(node, FUNCTIONS | ast.Lambda):
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            if min([node.lineno, *(one.lineno for one in decorators)]) == first:
                return node
    return None


def own_statements(scope: Scope | None) -> Iterator[ast.stmt]:
    """The statements of a scope, without those of functions and classes inside it; in no order."""
    todo = [] if scope is None else list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, FUNCTIONS | ast.Lambda | ast.ClassDef | ast.expr):
            todo += ast.iter_child_nodes(node)
