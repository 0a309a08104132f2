"""Which variables of a scope can be read again after a line, and which names may change.

The answers err on the side of "read again": a value that is kept in vain costs a little room, one
that is not kept makes a resumed run wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from .files import nodes_of
from .statements import scope_at
from .syntax import COMPREHENSIONS, FUNCTIONS, LOOPS, WITHS, blocks_of, holds, is_path, targets_of

_CALLABLES = FUNCTIONS | ast.Lambda
_MUTATORS = {
    *("append", "extend", "insert", "pop", "remove", "clear", "update", "add", "sort", "reverse"),
    *("setdefault", "appendleft", "popleft", "discard", "rotate", "put", "push", "fill"),
    *("resize", "shuffle"),
}
# Functions by which a scope reads variables without naming them; the second without arguments.
_READS_ALL = ("locals", "globals", "eval", "exec")
_READS_OWN = ("vars", "dir")


@lru_cache(maxsize=256)
def dead_at(file: str, function: int, line: int) -> frozenset[str]:
    """Variables of a scope that nobody reads after a line before they get a new value."""
    scope = scope_at(file, function)
    body: list[ast.stmt] = getattr(scope, "body", [])
    if scope is None or not isinstance(body, list):
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
        if isinstance(node, _CALLABLES) and node is not scope:
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
            asked += is_path(one) and not _names(one).loaded & modules if one else 0
    return asked < named  # handed on, or asked for the scope, a module or what a call gives


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


def _last_names(target: ast.expr) -> Iterator[str]:
    for one in ast.walk(target) if isinstance(target, ast.Tuple | ast.List) else (target,):
        inner = one
        while isinstance(inner, ast.Subscript | ast.Starred):
            inner = inner.value
        if isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Name):
            yield inner.id


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
    if isinstance(node, _CALLABLES):
        return _free(node)
    if isinstance(node, COMPREHENSIONS):
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
        if holds(statement, line)
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
    if isinstance(node, WITHS):
        return any(_loads(item, name) for item in node.items) or _read_on(node.body, name, line)
    if isinstance(node, ast.If):
        return _loads(node.test, name) or _read_in_any(node, name, line)
    if isinstance(node, ast.Try):
        return _read_in_any(node, name, line)
    return _first_in(node, name) == "load"


def _read_in_any(node: ast.stmt, name: str, line: int) -> bool:
    return any(_read_on(block, name, line) for block in blocks_of(node))


def _first(body: Iterable[ast.stmt], name: str) -> str:
    """What a block does with a name first, whatever its conditions: "load", "store" or ""."""
    for statement in body:
        found = _first_in(statement, name)
        if found:
            return found
    return ""


def _first_in(node: ast.stmt, name: str) -> str:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = targets_of(node)
        if _loads(node.value, name) or any(_loads(one, name) for one in targets):
            return "load"
        return "store" if any(_stores(one, name) for one in targets) else ""
    if isinstance(node, ast.AugAssign):
        return "load" if _loads(node, name) or _stores(node.target, name) else ""
    if isinstance(node, WITHS):
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
        return "load" if any(_first(block, name) == "load" for block in blocks_of(node)) else ""
    return "load" if _loads(node, name) else ""
