"""Reads the loop around a line: which of its variables can be read again, which loops enclose it.

The answers err on the side of "read again": a value that is kept in vain costs a little room, one
that is not kept makes a resumed run wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..diagnosis.source.loops import LOOPS, nodes_of, tree_of

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_WITHS = ast.With | ast.AsyncWith
_MUTATORS = {
    *("append", "extend", "insert", "pop", "remove", "clear", "update", "add", "sort", "reverse"),
    *("setdefault", "appendleft", "popleft", "discard", "rotate", "put", "push", "fill"),
    *("resize", "shuffle"),
}
# Functions by which a scope reads variables without naming them; the second without arguments.
_READS_ALL = ("locals", "globals", "eval", "exec")
_READS_OWN = ("vars", "dir")


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop that asks a loader for its next batch.

    Args:
        first: line of its head.
        last: last line of its body.
        around: targets of the ``for`` loops around it, with their lines.
    """

    first: int
    last: int
    around: tuple[tuple[str, int], ...]


@lru_cache(maxsize=256)
def loop_at(file: str, function: int, line: int) -> Loop:
    """The loop at a line of the scope that begins at line ``function`` (0 for a module)."""
    scope, loops = _scope(file, function), list[ast.stmt]()
    for node in _within(scope):
        if isinstance(node, LOOPS) and node.lineno <= line <= (node.end_lineno or line):
            loops.append(node)
    loops.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)))
    if not loops:
        return Loop(line, line, ())
    inner = loops[-1]
    # Asked for by `for x in loader` the head is at work; by `next(it)` a line of the body.
    heads = isinstance(inner, ast.For) and line < inner.body[0].lineno
    around = [one for one in loops if isinstance(one, ast.For) and not (heads and one is inner)]
    targets = tuple(
        (name.id, one.lineno)
        for one in around
        for name in ast.walk(one.target)
        if isinstance(name, ast.Name)
    )
    return Loop(inner.lineno, inner.end_lineno or inner.lineno, targets)


@lru_cache(maxsize=256)
def blocks_around(file: str, function: int, line: int, head: int) -> tuple[ast.stmt, ...]:
    """Loops and ``with`` whose body a line of a scope is in, outermost first.

    The loop whose head is at line ``head`` counts too where the line is in its head.
    """
    found = [
        node
        for node in _within(_scope(file, function))
        if isinstance(node, LOOPS | _WITHS)
        and (node.body[0].lineno <= line <= (node.body[-1].end_lineno or line))
        | (node.lineno == head and node.lineno <= line < node.body[0].lineno)
    ]
    return tuple(sorted(found, key=lambda node: (node.lineno, -(node.end_lineno or 0))))


@lru_cache(maxsize=256)
def asks_alone(file: str, function: int, line: int) -> bool:
    """Whether the statement at a line begins with ``next(...)``: nothing is read before it."""
    inside = [one for one in _within(_scope(file, function)) if one.lineno <= line]
    inside = [one for one in inside if line <= (one.end_lineno or line)]
    one = max(inside, key=lambda one: (one.lineno, -(one.end_lineno or 0)), default=None)
    if not isinstance(one, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return False
    value: ast.expr | None = one.value
    while True:
        if isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        else:
            break
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    return value.func.id == "next" and all(_is_path(one) for one in value.args[:1])


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


@lru_cache(maxsize=256)
def in_handler(file: str, function: int, line: int) -> bool:
    """Whether a line of a scope is in an ``except`` or a ``finally``."""
    tries = (one for one in _within(_scope(file, function)) if isinstance(one, ast.Try))
    parts = (part for one in tries for part in (*one.handlers, *one.finalbody))
    return any(part.lineno <= line <= (part.end_lineno or line) for part in parts)


@lru_cache(maxsize=64)
def for_at(file: str, line: int) -> ast.For:
    """The ``for`` whose head begins at a line of a file."""
    return next(one for one in nodes_of(file) if isinstance(one, ast.For) and one.lineno == line)


@lru_cache(maxsize=256)
def dead_at(file: str, function: int, line: int) -> frozenset[str]:
    """Variables of a scope that nobody reads after a line before they get a new value."""
    scope = _scope(file, function)
    body: list[ast.stmt] = getattr(scope, "body", [])
    if not isinstance(body, list):
        return frozenset()
    try:
        return _dead(scope, body, list(ast.walk(scope)) if function else nodes_of(file), line)
    except RecursionError:
        return frozenset()  # a sum of a thousand terms is as deep as that


def _dead(
    scope: ast.AST, body: list[ast.stmt], nodes: Iterable[ast.AST], line: int
) -> frozenset[str]:
    nodes = list(nodes)
    if not _joined(body).loaded.isdisjoint(_READS_ALL) or _reads_own(body, nodes):
        return frozenset()
    # A function may read what it shares whenever it is called; so may whoever declares a name.
    shared = set[str]()
    for node in nodes:
        if isinstance(node, _FUNCTIONS) and node is not scope:
            shared |= _names(node).loaded
        elif isinstance(node, ast.Global | ast.Nonlocal):
            shared.update(node.names)
    own = _joined(body).stored - shared
    return frozenset(name for name in own if not _read_on(body, name, line))


def _reads_own(body: Iterable[ast.stmt], nodes: Iterable[ast.AST]) -> bool:
    """Whether ``vars`` or ``dir`` may be asked for the scope, not for an object like ``args``."""
    if _joined(body).loaded.isdisjoint(_READS_OWN):
        return False
    modules, named, asked = set[str](), 0, 0
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules.update((one.asname or one.name).split(".")[0] for one in node.names)
        elif isinstance(node, ast.Name) and node.id in _READS_OWN:
            named += 1
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            one = node.args[0] if node.func.id in _READS_OWN and node.args else None
            asked += _is_path(one) and not _names(one).loaded & modules if one else 0
    return asked < named  # handed on, or asked for the scope, a module or what a call gives


@lru_cache(maxsize=256)
def in_comprehension(file: str, function: int, line: int) -> bool:
    """Whether a line of a scope holds a comprehension, which keeps its result to itself."""
    return any(
        isinstance(node, _COMPREHENSIONS) and node.lineno <= line <= (node.end_lineno or line)
        for statement in _within(_scope(file, function))
        if statement.lineno <= line <= (statement.end_lineno or line)
        and not hasattr(statement, "body")
        for node in ast.walk(statement)
    )


@lru_cache(maxsize=256)
def line_of(file: str, function: int, name: str) -> int:
    """Where a variable of a scope gets its first value; the line of the scope where nowhere."""
    scope = _scope(file, function)
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return node.lineno
    return function or 1


@lru_cache(maxsize=64)
def changed_names(file: str) -> frozenset[str]:
    """Last names of whatever a function or a loop of a file may change in place or assign."""
    found: set[str] = set()
    for node in nodes_of(file):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            targets = [node.target]
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                if called.attr in _MUTATORS or called.attr.endswith("_"):
                    targets = [called.value]
                if called.attr in ("shuffle", "heappush", "heappop"):
                    targets += node.args
            elif isinstance(called, ast.Name) and called.id in ("shuffle", "heappush", "heappop"):
                targets = list(node.args)
        for target in targets:
            found.update(_last_names(target))
    return frozenset(found)


@lru_cache(maxsize=64)
def loads_optimizer(file: str) -> int:
    """The line at which a script restores an optimizer by itself; 0 where it does not."""
    for node in nodes_of(file):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load_state_dict"
            and "opt" in ast.unparse(node.func.value).lower()
        ):
            return node.lineno
    return 0


# ---------------------------------------------------------------------- details


def _last_names(target: ast.expr) -> Iterator[str]:
    for one in ast.walk(target) if isinstance(target, ast.Tuple | ast.List) else (target,):
        inner = one
        while isinstance(inner, ast.Subscript | ast.Starred):
            inner = inner.value
        if isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Name):
            yield inner.id


@lru_cache(maxsize=256)
def _scope(file: str, function: int) -> ast.AST:
    if not function:
        return tree_of(file)
    for node in nodes_of(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [one.lineno for one in node.decorator_list]
            if min([node.lineno, *decorators]) == function:
                return node
        elif isinstance(node, ast.Lambda) and node.lineno == function:
            return node
    return ast.Module([], [])


def _within(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope, without those of functions and classes inside it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, _FUNCTIONS | ast.ClassDef | ast.expr):
            todo += ast.iter_child_nodes(node)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names in a piece of code, whatever is around them."""

    loaded: frozenset[str]
    stored: frozenset[str]


_NO_NAMES = _Names(frozenset(), frozenset())


@lru_cache(maxsize=8192)
def _names(node: ast.AST) -> _Names:
    """Made of those of its parts: the same piece is asked for every variable of its scope.

    What a function or a comprehension calls its own is none of what is around it.
    """
    if isinstance(node, ast.Name):
        name = frozenset((node.id,))
        stored = isinstance(node.ctx, ast.Store)
        return _Names(frozenset(), name) if stored else _Names(name, frozenset())
    if isinstance(node, _FUNCTIONS):
        return _free(node)
    if isinstance(node, _COMPREHENSIONS):
        own = _joined(one.target for one in node.generators).stored
        inside = _joined(ast.iter_child_nodes(node))
        first = _names(node.generators[0].iter).loaded
        return _Names((inside.loaded - own) | first, inside.stored - own)
    parts = _joined(ast.iter_child_nodes(node))
    return _Names(parts.loaded, frozenset()) if isinstance(node, ast.ClassDef) else parts


def _free(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> _Names:
    """Names that a function has from what is around it."""
    body = [function.body] if isinstance(function, ast.Lambda) else function.body
    inside, around = _joined(body), function.args
    arguments = [*around.posonlyargs, *around.args, *around.kwonlyargs, around.vararg, around.kwarg]
    shared = {
        name
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for name in node.names
    }
    own = inside.stored.union(one.arg for one in arguments if one is not None) - shared
    outside = _joined(one for one in ast.iter_child_nodes(function) if one not in body)
    return _Names((inside.loaded - own) | outside.loaded, frozenset())


def _joined(nodes: Iterable[ast.AST]) -> _Names:
    parts = [_names(node) for node in nodes]
    parts = [names for names in parts if names is not _NO_NAMES]
    if len(parts) < 2:
        return parts[0] if parts else _NO_NAMES
    return _Names(
        frozenset().union(*(names.loaded for names in parts)),
        frozenset().union(*(names.stored for names in parts)),
    )


def _loads(node: ast.AST | None, name: str) -> bool:
    return node is not None and name in _names(node).loaded


def _stores(node: ast.AST | None, name: str) -> bool:
    return node is not None and name in _names(node).stored


def _read_on(body: Iterable[ast.stmt], name: str, line: int) -> bool:
    """Whether a block in which the program stands may read what a name holds there.

    No statement of it may read the name before giving it a value itself: those above the line
    come again where a loop is around, and whether there is one is not asked.
    """
    return any(
        _reads_from(statement, name, line)
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno)
        else _first_in(statement, name) == "load"
        for statement in body
    )


def _reads_from(node: ast.stmt, name: str, line: int) -> bool:
    """The same for the statement in which the program stands."""
    if isinstance(node, LOOPS):
        head = node.test if isinstance(node, ast.While) else node.iter
        own = not isinstance(node, ast.While) and _stores(node.target, name)
        if _loads(head, name) or _first(node.orelse, name) == "load":
            return True
        if line < node.body[0].lineno:  # each round begins with the targets
            return not own and _first(node.body, name) == "load"
        return _read_on(node.body, name, line)
    if isinstance(node, _WITHS):
        return any(_loads(item, name) for item in node.items) or _read_on(node.body, name, line)
    if isinstance(node, ast.If):
        blocks = [node.body, node.orelse]
        return _loads(node.test, name) or any(_read_on(block, name, line) for block in blocks)
    if isinstance(node, ast.Try):
        blocks = [node.body, *(one.body for one in node.handlers), node.orelse, node.finalbody]
        return any(_read_on(block, name, line) for block in blocks)
    return _first_in(node, name) == "load"


def _first(body: Iterable[ast.stmt], name: str) -> str:
    """What a block does with a name first, whatever its conditions: "load", "store" or ""."""
    for statement in body:
        found = _first_in(statement, name)
        if found:
            return found
    return ""


def _first_in(node: ast.stmt, name: str) -> str:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if _loads(node.value, name) or any(_loads(one, name) for one in targets):
            return "load"
        return "store" if any(_stores(one, name) for one in targets) else ""
    if isinstance(node, ast.AugAssign):
        return "load" if _loads(node, name) or _stores(node.target, name) else ""
    if isinstance(node, _WITHS):
        for item in node.items:
            if _loads(item, name):
                return "load"
            if _stores(item, name):
                return "store"
        return _first(node.body, name)
    if isinstance(node, ast.If):
        if _loads(node.test, name):
            return "load"
        ways = {_first(node.body, name), _first(node.orelse, name)}
        return "load" if "load" in ways else "store" if ways == {"store"} else ""
    if isinstance(node, LOOPS):
        head = node.test if isinstance(node, ast.While) else node.iter
        own = not isinstance(node, ast.While) and _stores(node.target, name)
        if _loads(head, name) or (not own and _first(node.body, name) == "load"):
            return "load"
        return "load" if _first(node.orelse, name) == "load" else ""
    if isinstance(node, ast.Try):
        blocks = [node.body, *(one.body for one in node.handlers), node.orelse, node.finalbody]
        return "load" if any(_first(block, name) == "load" for block in blocks) else ""
    return "load" if _loads(node, name) else ""
