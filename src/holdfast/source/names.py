"""Names that a statement reads and writes; ``self.h`` counts as a name of its own.

What is visible counts, items and ``append`` included. Which variables hold the same object is not
known: ``liveness`` has the answers that must never say too little.
"""

from __future__ import annotations

import ast

from .syntax import blocks_of

_GROWS = ("append", "extend", "insert", "add")


def writes(node: ast.AST) -> set[str]:
    """Names a statement binds, and those whose contents it visibly changes."""
    stored = _names(node, ast.Store)
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            stored.add(ast.unparse(part.value))
        elif (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in _GROWS
        ):
            stored.add(ast.unparse(part.func.value))
    return stored


def surely_writes(statement: ast.stmt) -> set[str]:
    """Names that hold nothing from before once the statement has run."""
    if isinstance(statement, ast.Assign):
        return set().union(*(_names(t, ast.Store) for t in statement.targets))
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return _names(statement.target, ast.Store)
    if isinstance(statement, ast.With):
        return set().union(*map(surely_writes, statement.body))
    if isinstance(statement, ast.If) and statement.orelse:
        one, other = (set[str]().union(*map(surely_writes, part)) for part in blocks_of(statement))
        return one & other
    return set()


def exposed(statement: ast.stmt) -> set[str]:
    """Names a statement reads before it has written them itself."""
    parts = list(blocks_of(statement))
    if not parts:
        return reads(statement)
    bound: set[str] = set()
    found: set[str] = set()
    for field in ("test", "iter"):
        if hasattr(statement, field):
            found |= reads(getattr(statement, field))
    if isinstance(statement, ast.For):
        bound |= _names(statement.target, ast.Store)
    for item in getattr(statement, "items", ()):
        found |= reads(item.context_expr)
        bound |= _names(item.optional_vars, ast.Store) if item.optional_vars else set()
    for part in parts:
        written = set(bound)
        for inner in part:
            found |= exposed(inner) - written
            written |= surely_writes(inner)
    return found


def reads(node: ast.AST) -> set[str]:
    """Names a statement uses, and those it adds to."""
    changed = [n.target for n in ast.walk(node) if isinstance(n, ast.AugAssign)]
    own = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    for part in ast.walk(node):
        if isinstance(part, ast.comprehension):
            own |= _names(part.target, ast.Store)
    return (_names(node, ast.Load) - own) | {ast.unparse(t) for t in changed}


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names in one role; ``self.h`` counts as a name of its own."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, context):
            found.add(part.id)
        elif (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and isinstance(part.ctx, context)
        ):
            found.add(f"{part.value.id}.{part.attr}")
    return found
