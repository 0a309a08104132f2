"""The lines of a file of the user's and its syntax tree: every file is parsed once.

Read through ``linecache``, which also knows the cells of notebooks.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

UNREADABLE = ast.Module([], [])
"""The tree of a file that cannot be parsed."""


def lines_of(file: str) -> list[str]:
    """The lines of a file without their ends; empty where it cannot be read."""
    return [line.rstrip("\n") for line in linecache.getlines(file)]


def line_at(file: str, line: int) -> str:
    """One line without its end; empty where there is none."""
    return linecache.getline(file, line).rstrip("\n")


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module:
    """A file, parsed; ``UNREADABLE`` where that cannot be done. Shared: nobody changes it."""
    return parsed("".join(linecache.getlines(file))) or UNREADABLE


@lru_cache(maxsize=64)
def nodes_of(file: str) -> list[ast.AST]:
    """Every node of a file, walked through once: that takes as long as to parse it."""
    return list(ast.walk(tree_of(file)))


def parsed(code: str) -> ast.Module | None:
    """A piece of code, parsed; None where it is half a statement, or too deep a one."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
