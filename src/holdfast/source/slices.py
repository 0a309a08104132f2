"""Which statements of a block made a value: a small backward slice over the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container

from .names import exposed, reads, surely_writes, writes
from .syntax import LOOPS, blocks_of, called

# Calls that do more than compute: running them twice would change the training.
_EFFECTS = {"next", "step", "backward", "zero_grad", "update", "save", "input", "open", "send",
            "recv", "pop", "popleft", "write", "manual_backward"}  # fmt: skip


Position = tuple[int, int]
"""Line and column of a source file, as the syntax tree counts them."""


class NotRepeatable(Exception):
    """Why a loss cannot be computed again."""


def before(body: list[ast.stmt], at: Position) -> tuple[list[ast.stmt], list[ast.With]]:
    """What has run before a place in the same turn of its loop, and the autocast around it.

    Statements of the enclosing blocks count as far out as the innermost loop.
    """
    around: list[ast.With] = []
    passed: list[ast.stmt] = []
    line = at[0]
    while True:
        started = [s for s in body if (s.lineno, s.col_offset) <= at]
        here = next((s for s in reversed(started) if line <= (s.end_lineno or s.lineno)), None)
        passed += [s for s in started if s is not here]
        parts = list(blocks_of(here)) if here is not None else []
        inner = next((p for p in parts if p[0].lineno <= line <= _end(p)), None)
        if inner is None:
            return passed, around
        if isinstance(here, ast.With) and "autocast" in ast.unparse(here.items[0]):
            around.append(here)
        if isinstance(here, LOOPS):
            passed = []
        body = inner


def sliced(
    passed: list[ast.stmt],
    wanted: ast.expr,
    computed: Callable[[str], bool],
    is_bad: Callable[[str], bool],
    given: Container[str] = (),
) -> tuple[set[str], list[ast.stmt]]:
    """The statements that made ``wanted``, and the names they need from before.

    Args:
        passed: statements that have run, in order.
        wanted: the expression to compute.
        computed: whether a name now holds something made from the weights; anything else (a
            batch, a model) is used as it is and not made again.
        is_bad: whether a name now holds numbers that are not finite; such a value is made
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
        elif why_not or not any(map(is_bad, made)):
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


def _end(body: list[ast.stmt]) -> int:
    return body[-1].end_lineno or body[-1].lineno
