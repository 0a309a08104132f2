"""Which statements of a block made a value: a small backward slice over the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator
from typing import TypeGuard

# Calls that do more than compute: running them twice would change the training.
_EFFECTS = {"next", "step", "backward", "zero_grad", "update", "save", "input", "open", "send",
            "recv", "pop", "popleft", "write", "manual_backward"}  # fmt: skip
_GROWS = ("append", "extend", "insert", "add")


Position = tuple[int, int]
"""Line and column of a source file, as the syntax tree counts them."""


class NotRepeatable(Exception):
    """Why a loss cannot be computed again."""


def calls(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Whether a node is a call of something with ``name`` in its name."""
    return isinstance(node, ast.Call) and name in called(node)


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def before(body: list[ast.stmt], at: Position) -> tuple[list[ast.stmt], list[ast.With]]:
    """What has run before a place in the same turn of its loop, and the autocast around it.

    Statements of the enclosing blocks count as far out as the innermost loop.
    """
    around: list[ast.With] = []
    passed: list[ast.stmt] = []
    line = at[0]
    while True:
        begun = [s for s in body if (s.lineno, s.col_offset) <= at]
        here = next((s for s in reversed(begun) if line <= (s.end_lineno or s.lineno)), None)
        passed += [s for s in begun if s is not here]
        parts = list(_parts(here)) if here is not None else []
        inner = next((p for p in parts if p[0].lineno <= line <= _end(p)), None)
        if inner is None:
            return passed, around
        if isinstance(here, ast.With) and "autocast" in ast.unparse(here.items[0]):
            around.append(here)
        if isinstance(here, ast.For | ast.AsyncFor | ast.While):
            passed = []
        body = inner


def sliced(
    passed: list[ast.stmt],
    wanted: ast.expr,
    computed: Callable[[str], bool],
    spoilt: Callable[[str], bool],
    given: Container[str] = (),
) -> tuple[set[str], list[ast.stmt]]:
    """The statements that made ``wanted``, and the names they need from before.

    Args:
        passed: statements that have run, in order.
        wanted: the expression to compute.
        computed: whether a name now holds something made from the weights; anything else (a
            batch, a model) is used as it is and not made again.
        spoilt: whether a name now holds numbers that are not finite; such a value is made
            again too, where that can be done.
        given: names whose values from before are known.

    Raises:
        NotRepeatable: a value from before them has been overwritten since, or a statement does
            more than compute.
    """
    needed = reads(wanted)
    kept: list[ast.stmt] = []
    rewritten: set[str] = set()
    for statement in reversed(passed):
        made = writes(statement) & needed
        # A plain input is used as it is, unless a statement we repeat has changed it since.
        why_not = effects(statement)
        if any(name in rewritten or computed(name) for name in made):
            if why_not:
                raise NotRepeatable(why_not)
        elif why_not or not any(map(spoilt, made)):
            continue
        kept.insert(0, statement)
        needed = (needed - surely_writes(statement)) | exposed(statement)
        rewritten |= writes(statement)
    lost = {n for n in needed & rewritten if not n.startswith("self.") and n not in given}
    if lost:
        raise NotRepeatable(f"{min(lost)} has changed since the step began")
    return needed, kept


def effects(node: ast.AST) -> str:
    """Why a statement must not run twice; empty when it only computes."""
    for part in ast.walk(node):
        if isinstance(part, ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal):
            return "its statements cannot be taken out of their function"
        leaves = isinstance(part, ast.Return | ast.Break | ast.Continue)
        if leaves and not isinstance(node, ast.For | ast.While | ast.FunctionDef):
            return "its statements leave the block"
        if isinstance(part, ast.Call) and called(part) in _EFFECTS:
            return f"computing it again would call {called(part)}() again"
    return ""


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
        one, other = (set[str]().union(*map(surely_writes, part)) for part in _parts(statement))
        return one & other
    return set()


def exposed(statement: ast.stmt) -> set[str]:
    """Names a statement reads before it has written them itself."""
    parts = list(_parts(statement))
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


def _parts(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        part = getattr(statement, name, None)
        if part:
            yield part
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _end(body: list[ast.stmt]) -> int:
    return body[-1].end_lineno or body[-1].lineno
