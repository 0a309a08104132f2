"""Which types and modules are the user's own."""

from __future__ import annotations

import sys
import weakref

from .place import LIBRARIES, kind_of

_modules_known: tuple[int, list[str]] = (0, [])


def user_modules() -> list[str]:
    """Names of modules that are the user's own; searched again when others have been loaded."""
    global _modules_known
    count, names = _modules_known
    if count != len(sys.modules):
        names = [
            name
            for name, module in list(sys.modules.items())
            if isinstance(file := getattr(module, "__file__", None), str) and _is_users(file)
        ]
        _modules_known = len(sys.modules), names
    return names


def _is_users(file: str) -> bool:
    # Links are followed only where the name alone does not tell: there are thousands of modules.
    return (
        not file.startswith(LIBRARIES) and "site-packages" not in file and (kind_of(file) == "user")
    )


_known: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def file_of_type(kind: type) -> str | None:
    """The file of the module that defines a type."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def owner_of(kind: type) -> str:
    """Whose code defines a type: "user", "library" or "torch" (and ours, and Python's own)."""
    whose = _known.get(kind)
    if whose is None:
        module = str(kind.__module__)
        file = file_of_type(kind)
        if module == "__main__" and not file:
            whose = "user"
        elif module.split(".")[0] == "builtins" or file is None:
            whose = "torch"
        elif file.startswith(LIBRARIES):
            whose = "torch" if module.split(".")[0] in ("torch", "holdfast") else "library"
        else:
            whose = kind_of(file)
        _known[kind] = whose
    return whose
