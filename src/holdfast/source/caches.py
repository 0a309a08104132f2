"""Reads the user's source: is a line passed only for what a cache does not have yet?"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from .statements import functions_around


def asked_before(path: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Where a cache is asked on the way to a line, innermost first; None where none is.

    Args:
        path: the lines that lead to it, outermost first.
    """
    for file, line in reversed(tuple(path)):
        if found := _asked(file, line):
            return file, found
    return None


def questions(node: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """Line and container of each question whether something is in it yet."""
    for part in ast.walk(node):
        if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.In | ast.NotIn):
            yield part.lineno, part.comparators[0]
        elif isinstance(part, ast.Attribute) and part.attr == "get":
            yield part.lineno, part.value


@lru_cache(maxsize=256)
def _asked(file: str, line: int) -> int:
    """The line at which the function around a line asks what it fills; 0 where it does not."""
    for function in reversed(functions_around(file, line)):
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
        asks = [at for at, c in questions(function) if at < line and ast.unparse(c) in filled]
        if asks:
            return max(asks)
    return 0
