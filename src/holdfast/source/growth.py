"""What the source says about a name: which statements let it grow, which keep it small."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import lru_cache

from .caches import questions
from .statements import statement_at, statements
from .syntax import base_of, called, flat, is_named, last_name, mentions, targets_of

_GROW = {"append", "extend", "add", "update", "insert", "appendleft", "setdefault", "push"}
_SHRINK = {"clear", "pop", "popleft", "popitem", "remove"}
_DRAWS = {"sample", "choice", "choices"}
_ASSIGNS = ast.Assign | ast.AnnAssign | ast.AugAssign
_LEAVES = ast.Return | ast.Continue | ast.Break | ast.Raise


@dataclass(slots=True)
class Habits:
    """How a file treats one name."""

    grows: list[int] = field(default_factory=list[int])
    """First lines of statements that let it grow, inside a loop or a function."""
    shrinks: bool = False
    """Something takes items out, or begins anew inside a loop or a function that is called."""
    tested: bool = False
    """What is in it is asked before it grows, as caches do."""
    read: bool = False
    """A loop, or a function, goes on with what is in it, and not only with its length."""
    capped: bool = False
    """It grows only while it is shorter than something."""
    assigned: list[int] = field(default_factory=list[int])
    """First lines of statements that give the name a value: those in loops, then in functions."""


@lru_cache(maxsize=256)
def habits(file: str, name: str, scope: str = "") -> Habits:
    """What the statements of a file do with one name (a variable or an attribute).

    Args:
        file: the file.
        name: the last name of the path, without owner.
        scope: the function a local variable lives in; empty for attributes and globals.
    """
    found = Habits()
    started: list[int] = []
    for each in statements(file):
        node, functions = each.node, each.names
        if scope and functions and scope not in functions:
            continue
        looped = bool(each.loops)
        initial = functions[-1:] in ((), ("__init__",), ("__post_init__",), ("setup",))
        again = looped or not initial
        if isinstance(node, _ASSIGNS) and again and _assignment(node, name, looped, found):
            (found.assigned if looped else started).append(node.lineno)
        elif isinstance(node, ast.Delete):
            found.shrinks |= any(is_named(base_of(target), name) for target in node.targets)
        elif isinstance(node, ast.If):
            found.capped |= _caps(node, name)
        # What is inside of a statement with a body comes by itself.
        part = getattr(node, "test", None) if hasattr(node, "body") else node
        if part is not None:
            found.tested |= any(mentions(container, name) for _, container in questions(part))
            found.read |= again and _reads(part, name)
            _calls(part, node.lineno if again else 0, name, found)
    found.assigned += started
    return found


def _calls(node: ast.AST, line: int, name: str, found: Habits) -> None:
    """Methods of the name that are called at a line; 0 for one that runs once."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
            continue
        method = part.func.attr
        if is_named(base_of(part.func.value), name):
            if method in _GROW and line:
                found.grows.append(line)
                found.tested |= method == "setdefault"
            found.shrinks |= method in _SHRINK


def _reads(node: ast.AST, name: str) -> bool:
    """Whether an item of the name, or all of them, are taken to go on with.

    What is printed, counted or summed up for people is not.
    """
    if isinstance(node, ast.Expr):
        return False
    value = getattr(node, "value", node) if isinstance(node, _ASSIGNS | ast.Return) else node
    if value is None or isinstance(node, ast.AugAssign):
        return False
    return any(_takes(part, name) for part in ast.walk(value))


def _takes(node: ast.AST, name: str) -> bool:
    """``name[i]``, ``random.sample(name, 32)``."""
    if isinstance(node, ast.Subscript):
        return is_named(node.value, name)
    if not isinstance(node, ast.Call):
        return False
    return called(node) in _DRAWS and any(mentions(given, name) for given in node.args)


def _assignment(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign, name: str, looped: bool, found: Habits
) -> bool:
    """What an assignment does with the name; whether it gives it another value."""
    targets = list(flat(targets_of(node)))
    itself = any(is_named(t, name) for t in targets)
    items = [t for t in targets if isinstance(t, ast.Subscript) and is_named(base_of(t), name)]
    if not itself and not items:
        return False
    value = node.value
    # x[:] = ... and x = x[-100:] keep it small.
    sliced = [*items, *([value] if itself and mentions(value, name) else [])]
    cut = isinstance(node, ast.Assign) and any(
        isinstance(s, ast.Subscript) and isinstance(s.slice, ast.Slice) for s in sliced
    )
    if items or isinstance(node, ast.AugAssign) or mentions(value, name):
        found.grows += [] if cut and items else [node.lineno]
        found.shrinks |= cut
    else:
        # A variable that gets its first value at the beginning of a function is only born there.
        found.shrinks |= looped or any(isinstance(t, ast.Attribute) for t in targets)
    return itself and not isinstance(value, ast.Constant)


def _caps(node: ast.If, name: str) -> bool:
    """Whether a statement lets a name grow only while its length, or a sum, is small."""
    compared = node.test
    if not isinstance(compared, ast.Compare) or len(compared.ops) != 1:
        return False
    counted = [s.target for s in node.body if isinstance(s, ast.AugAssign)]
    names = map(last_name, counted)
    if any(mentions(compared, counter) for counter in names) and _fills(node.body, name):
        return True  # what is compared with a limit is counted up
    lengths = [
        isinstance(side, ast.Call) and is_named(side.func, "len") and mentions(side, name)
        for side in (compared.left, compared.comparators[0])
    ]
    if not any(lengths):
        return False
    shorter = isinstance(compared.ops[0], ast.Lt | ast.LtE) == lengths[0]
    if not shorter and isinstance(node.body[-1], _LEAVES):
        return True  # when it is long enough, what follows is left out
    return _fills(node.body if shorter else node.orelse, name)


def _fills(body: list[ast.stmt], name: str) -> bool:
    """Whether one of these statements puts something into a name."""
    block, found = ast.Module(body, []), Habits()
    _calls(block, 1, name, found)
    stored = [t for part in ast.walk(block) if isinstance(part, ast.Assign) for t in part.targets]
    return bool(found.grows) or any(is_named(base_of(t), name) for t in stored)


def refers_to_itself(file: str, line: int, name: str) -> bool:
    """Whether the statement at a line makes a value out of its former self."""
    found = statement_at(file, line)
    node = found.node if found is not None else None
    if isinstance(node, ast.AugAssign):
        return is_named(base_of(node.target), name)
    # buffer.extend(...) changes it in place
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr) and mentions(node.value, name)
