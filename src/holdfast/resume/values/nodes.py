"""The tree that variables are saved as: its nodes, and how classes and paths are written in it."""

from __future__ import annotations

import collections
import copyreg
import re
import sys
import types
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ...source.ownership import kind_of

Node = Any
Take = Callable[[Any, str], Node]
"""Gives the node of a value, which is found at a path."""
KIND = "#"
MISSING = object()
"""Stands for a variable that has no value."""
READS, WORKS = "what the loop in line ", "what the expression in line "
"""How the path of what a loop or an expression reads begins, behind its root."""

SCALARS = frozenset((bool, int, float, str, bytes, type(None)))
"""Classes whose values are their own nodes."""
DICTS: dict[str, type] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "Counter": collections.Counter,
}


class SeenObjects:
    """Objects that one look has met, and the paths they were met at first."""

    def __init__(self) -> None:
        # With the objects, so that no other gets the id of one that is gone.
        self._at: dict[int, tuple[str, Any]] = {}

    def note(self, value: Any, path: str) -> None:
        """An object is at this path."""
        self._at[id(value)] = path, value

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._at

    def path(self, value: Any) -> str:
        """Where it was met."""
        return self._at[id(value)][0]


def ref(value: Any) -> Node:
    """The node of what a resumed script has again by itself."""
    return {KIND: "ref", "c": type(value).__name__}


def same(one: Node, other: Node) -> bool:
    """Whether two nodes are the same: ``==`` of nodes that hold arrays has no truth value."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        held, others = cast("tuple[dict[Any, Any], dict[Any, Any]]", (one, other))
        return held.keys() == others.keys() and all(same(held[k], others[k]) for k in held)
    if isinstance(one, list | tuple):
        pairs = cast("tuple[list[Any], list[Any]]", (one, other))
        return len(one) == len(other) and all(map(same, *pairs))
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    return bool(one == other)


def shown(path: str) -> str:
    """A path as the user would write it: without the frame or the module."""
    return path.split("/", 1)[-1]


def last_name(path: str) -> str:
    """The name by which code would change what is at a path.

    >>> last_name("module __main__/losses"), last_name("0/self.log['a.b/c'][3]")
    ('losses', 'log')
    """
    return re.sub(r"\[[^]]*\]", "", shown(path)).rsplit(".", 1)[-1]


def class_name(kind: type) -> str:
    """A class as it is written."""
    return f"{kind.__module__}:{kind.__qualname__}"


def of_user(kind: type) -> bool:
    """Whether a class is the user's own."""
    return kind_of(str(getattr(sys.modules.get(kind.__module__), "__file__", "") or "")) == "user"


def holds_only_attributes(kind: type) -> bool:
    """Whether an object of this class is what its attributes are."""
    return kind is types.SimpleNamespace or (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and not (kind.__flags__ & (1 << 8) and kind.__module__ == "builtins")
        and (bool(getattr(kind, "__dictoffset__", 0)) or bool(slots(kind)))
    )


def slots(kind: type) -> list[str]:
    """Attributes that objects of a class have outside of their ``__dict__``."""
    names: list[str] = list(copyreg._slotnames(kind) or ())  # type: ignore[attr-defined]
    return [name for name in names if name not in ("__dict__", "__weakref__")]
