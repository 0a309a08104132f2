"""The line that gives a name its value."""

from __future__ import annotations

import ast
from functools import lru_cache

from .files import nodes_of
from .ownership import kind_of
from .statements import scope_at, statements
from .syntax import dotted, is_named, targets_of


@lru_cache(maxsize=256)
def first_line_of(file: str, function: int, name: str) -> int:
    """Where a variable of a scope gets its first value; the line of the scope where nowhere."""
    for node in ast.walk(scope_at(file, function) or ast.Pass()):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return node.lineno
    return function or 1


def first_assigned(file: str, name: str) -> int:
    """The first line that gives a variable or an attribute its value; 0 where none does."""
    for found in statements(file):
        node = found.node
        if isinstance(node, ast.Assign) and any(is_named(one, name) for one in node.targets):
            return node.lineno
    return 0


def attribute_line(file: str, name: str) -> int:
    """The last line of a file of the user's that assigns ``self.name``; 0 for none."""
    found = [
        part.lineno
        for each in (statements(file) if kind_of(file) == "user" else ())
        if isinstance(each.node, ast.Assign)
        for target in each.node.targets
        for part in ast.walk(target)
        if isinstance(part, ast.Attribute) and part.attr == name
    ]
    return max(found, default=0)


def attribute_of_class(file: str, name: str, attribute: str) -> int:
    """The line of ``self.attribute = …`` in the classes of a name; 0 for none."""
    for node in nodes_of(file):
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign | ast.AnnAssign) and any(
                dotted(target) == f"self.{attribute}" for target in targets_of(inner)
            ):
                return inner.lineno
    return 0
