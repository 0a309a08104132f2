"""The tree that variables are saved as: its nodes, and how classes and paths are written in it."""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Callable
from typing import Any

from ...diagnosis.source.files import kind_of
from ..refusal import RefusedError

Node = Any
Take = Callable[[Any, str], Node]
"""Gives the node of a value, which is found at a path."""
KIND = "#"
MISSING = object()
"""Stands for a variable that has no value."""

SCALARS = frozenset((bool, int, float, str, bytes, type(None)))
"""Classes whose values are their own nodes."""
DICTS: dict[str, type] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "Counter": collections.Counter,
}


class Seen:
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


def class_named(name: str, path: str) -> Any:
    """A class of the user's own by its name."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    file = _file(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    plain = isinstance(found, type) and (kind_of(file) == "user" or module in ("argparse", "types"))
    if not plain:
        raise RefusedError(f"{shown(path)} ({name}) is not there yet in the resumed run")
    return found


def of_user(kind: type) -> bool:
    """Whether a class is the user's own."""
    return kind_of(_file(kind.__module__)) == "user"


def _file(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", "") or "")
