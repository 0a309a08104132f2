"""What the failing expression was made of: its names, attributes and items, looked up, not run."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ...records.crash import CrashValue
from .traceback_frames import TracebackEntry
from .values import described, is_module, is_tensor

_MISSING = object()
_NAMED = 12


def operands(call: TracebackEntry) -> tuple[CrashValue, ...]:
    """The values in the failing expression, or in the statement where that is not known."""
    node = call.expression() or call.statement()
    if node is None:
        return ()
    found: dict[str, CrashValue] = {}
    for name, value in _values(node, call):
        if name in found or inspect.ismodule(value) or inspect.isclass(value):
            continue
        if callable(value) and not is_module(value) and not is_tensor(value):
            continue
        found[name] = described(name, value)
    return tuple(found.values())[:_NAMED]


def value_of(node: ast.expr, call: TracebackEntry) -> Any:
    """The value of a name, an attribute or a constant item; ``missing`` for everything else.

    Nothing of the user's is called for it: no property, no ``__getitem__`` of a class of his.
    """
    if isinstance(node, ast.Name):
        return _variable(node.id, call)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, call)
        return _MISSING if owner is _MISSING else attribute(owner, node.attr)
    if isinstance(node, ast.Subscript):
        owner = value_of(node.value, call)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else _MISSING
        if key is _MISSING and isinstance(node.slice, ast.Name):
            key = _variable(node.slice.id, call)
        return _MISSING if owner is _MISSING or key is _MISSING else _item(owner, key)
    return _MISSING


def known(value: object) -> bool:
    """Whether ``value_of`` found something."""
    return value is not _MISSING


def attribute(owner: Any, name: str) -> Any:
    """An attribute that can be read without running code."""
    if is_module(owner):
        for kind in ("_parameters", "_buffers", "_modules"):
            held = vars(owner).get(kind) or {}
            if name in held:
                return held[name]
    try:
        fields = vars(owner)
    except TypeError:
        fields = dict[str, Any]()
    if name in fields:
        return fields[name]
    found = inspect.getattr_static(type(owner), name, _MISSING)
    plain = not hasattr(type(found), "__get__")
    return found if plain else _MISSING


def _variable(name: str, call: TracebackEntry) -> Any:
    for scope in (call.frame.f_locals, call.frame.f_globals, call.frame.f_builtins):
        if name in scope:
            return scope[name]
    return _MISSING


def _item(owner: Any, key: Any) -> Any:
    try:
        if type(owner) is dict:
            return cast("Mapping[Any, Any]", owner).get(key, _MISSING)
        if type(owner) in (list, tuple) and isinstance(key, int):
            return cast("Sequence[Any]", owner)[key]
        if is_module(owner) and isinstance(key, int):
            return list(owner.children())[key]
    except (IndexError, TypeError):
        return _MISSING
    return _MISSING


def _values(node: ast.AST, call: TracebackEntry) -> Iterator[tuple[str, Any]]:
    """Every largest part that can be looked up, as the user wrote it."""
    if isinstance(node, ast.expr):
        value = value_of(node, call)
        if value is not _MISSING and not isinstance(node, ast.Constant):
            yield ast.unparse(node), value
            return
    body = getattr(node, "body", None)
    for child in ast.iter_child_nodes(node):
        # Of a statement with a body only the head was at work.
        if not (isinstance(body, list) and isinstance(child, ast.stmt)):
            yield from _values(child, call)
