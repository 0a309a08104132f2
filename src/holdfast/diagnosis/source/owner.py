"""Which types and modules are the user's own."""

from __future__ import annotations

import sys
import weakref

from .place import kind_of

_modules_known: tuple[int, list[str]] = (0, [])
_known: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def user_modules() -> list[str]:
    """Names of modules that are the user's own; searched again when others have been loaded."""
    global _modules_known
    count, names = _modules_known
    if count != len(sys.modules):
        names = [
            name
            for name, module in list(sys.modules.items())
            if isinstance(file := getattr(module, "__file__", None), str)
            and kind_of(file) == "user"
        ]
        _modules_known = len(sys.modules), names
    return names


def file_of(kind: type) -> str | None:
    """The file of the module that defines a type."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def owner_of(kind: type) -> str:
    """Whose code defines a type: "user", "library" or "torch" (and ours, and Python's own)."""
    whose = _known.get(kind)
    if whose is None:
        file = file_of(kind)
        if file is None:
            whose = "user" if kind.__module__ == "__main__" else "torch"
        else:
            whose = kind_of(file)
        _known[kind] = whose
    return whose
