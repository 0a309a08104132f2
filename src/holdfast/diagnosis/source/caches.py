"""Reads the user's source: is a line passed only for what a cache does not have yet?"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from .loops import tree_of

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def asked_before(path: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Where a cache is asked on the way to a line, innermost first; None where none is.

    Args:
        path: the lines that lead to it, outermost first.
    """
    for file, line in reversed(tuple(path)):
        if found := _asked(file, line):
            return file, found
    return None


@lru_cache(maxsize=256)
def _asked(file: str, line: int) -> int:
    """The line at which the function around a line asks what it fills; 0 where it does not."""
    for function in _around(file, line):
        for decorator in function.decorator_list:
            if "cache" in ast.unparse(decorator).split("(")[0].rsplit(".", 1)[-1]:
                return decorator.lineno
        filled = {
            ast.unparse(target.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Subscript)
        }
        asks = [at for at, name in _questions(function) if name in filled and at < line]
        if asks:
            return max(asks)
    return 0


def _around(file: str, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions around a line, the innermost first."""
    tree = tree_of(file)
    found = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return sorted(found, key=lambda node: -node.lineno)


def _questions(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and container of each question whether something is in it yet."""
    got: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            got[node.targets[0].id] = got.get(node.targets[0].id) or _source(node.value)
    for node in ast.walk(function):
        if isinstance(node, ast.Compare):
            left, right, how = node.left, node.comparators[0], node.ops[0]
            if isinstance(how, ast.In | ast.NotIn):
                yield node.lineno, ast.unparse(right)
            elif isinstance(how, ast.Is | ast.IsNot):
                name = left.id if isinstance(left, ast.Name) else ""
                yield node.lineno, got.get(name, "") or _source(left)
        elif isinstance(node, ast.Try):
            for caught in node.handlers:
                if caught.type is not None and "KeyError" in ast.unparse(caught.type):
                    for part in ast.walk(ast.Module(node.body, [])):
                        if isinstance(part, ast.Subscript):
                            yield caught.lineno, ast.unparse(part.value)


def _source(value: ast.expr) -> str:
    """The container that an expression takes something from; empty where it takes nothing."""
    if isinstance(value, ast.Subscript):
        return ast.unparse(value.value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return ast.unparse(value.func.value) if value.func.attr == "get" else ""
    return ""
