"""Which types and modules are the user's own."""

from __future__ import annotations

import sys
import weakref

from .place import kind_of

_modules_known: tuple[int, list[str]] = (0, [])
_users: dict[str, bool] = {}
_foreign: dict[str, bool] = {}
"""Packages by name: whether all of their modules are somebody else's."""
_known: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def user_modules() -> list[str]:
    """Names of modules that are the user's own; searched again when others have been loaded."""
    global _modules_known
    count, names = _modules_known
    if count != len(sys.modules):
        _users.pop("__main__", None)  # what runs under this name may be another script now
        for name in [name for name in list(sys.modules) if name not in _users]:
            _users[name] = _is_users(name)
        names = [name for name in list(sys.modules) if _users.get(name)]
        _modules_known = len(sys.modules), names
    return names


def _is_users(name: str) -> bool:
    # There are thousands of modules in some hundred packages: those of others are asked once.
    package, dot, _ = name.partition(".")
    if dot:
        foreign = _foreign.get(package)
        if foreign is None:
            foreign = _foreign[package] = _whose(package) not in (None, "user")
        if foreign:
            return False
    return _whose(name) == "user"


def _whose(name: str) -> str | None:
    """Whose code a module is; None where it has no file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return kind_of(file) if isinstance(file, str) else None


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
