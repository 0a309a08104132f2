"""Words for the parts of a syntax tree, whatever file it is of.

>>> node = ast.parse("self.history[0].loss = f(x)").body[0]
>>> [last_name(target) for target in targets_of(node)]
['loss']
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

LOOPS = ast.For | ast.While | ast.AsyncFor
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
WITHS = ast.With | ast.AsyncWith
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def holds(node: ast.stmt | ast.expr | ast.excepthandler, line: int) -> bool:
    """Whether a line is one of a node's, the first and the last included."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks inside a statement; none of a function or a class, which run at another time."""
    if isinstance(statement, FUNCTIONS | ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def expressions_of(statement: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement, without those of the statements inside it."""
    found = ast.iter_child_nodes(statement)
    return [node for node in found if isinstance(node, ast.expr | ast.withitem)]


def head_of(statement: ast.stmt) -> list[ast.AST]:
    """A statement, or the expressions in the head of one that has a body."""
    return expressions_of(statement) if hasattr(statement, "body") else [statement]


def targets_of(statement: ast.AST) -> list[ast.expr]:
    """What a statement gives a value to, as it is written: names, attributes, items, tuples."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        return [statement.target]
    if isinstance(statement, WITHS):
        return [item.optional_vars for item in statement.items if item.optional_vars is not None]
    return []


def flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    """Targets without the tuples, lists and stars around them."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from flat(target.elts)
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def base_of(node: ast.expr) -> ast.expr:
    """What the items are taken of: ``a.b`` of ``a.b[0][1]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def last_name(node: ast.AST | None) -> str:
    """The last part of a name: ``b`` of ``a.b``; empty for what has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_named(node: ast.AST | None, name: str) -> bool:
    """Whether a node is a variable or an attribute of this name."""
    return bool(name) and last_name(node) == name


def mentions(node: ast.AST | None, name: str) -> bool:
    """Whether a name occurs somewhere in a node, as a variable or an attribute."""
    return node is not None and any(is_named(part, name) for part in ast.walk(node))


def first_name(node: ast.AST) -> str:
    """The variable at the beginning of a name: ``a`` of ``a.b``; empty where there is none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_path(node: ast.expr) -> bool:
    """Whether an expression is a variable or an attribute of one, which nothing is called for."""
    return bool(first_name(node))


def dotted(node: ast.expr) -> str:
    """All of a name, with ``?`` for what has none: ``?.mean`` of ``f(x).mean``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return last_name(call.func)


def calls(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Whether a node is a call of something with ``name`` in its name."""
    return isinstance(node, ast.Call) and name in called(node)
