"""Whose code a file, a module or a type is; without torch, which a script may not have."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import weakref
from functools import lru_cache
from pathlib import Path


def _prefixes(*folders: str | Path | None) -> tuple[str, ...]:
    """Folders as modules name them, and with all links followed."""
    known = [str(folder) for folder in folders if folder]
    return tuple(os.path.join(folder, "") for folder in (*known, *map(os.path.realpath, known)))


def _folder_of_torch() -> str | None:
    """Where torch is or would be imported from."""
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return os.path.dirname(found.origin) if found is not None and found.origin else None


_OURS = Path(__file__).parents[1]
_TORCH = _prefixes(_folder_of_torch(), _OURS)
# The catalogue's faults are training scripts that happen to live in our package. All that a
# ``Task`` of the trainer holds was made by the user's recipe.
_SCRIPTS = _prefixes(_OURS / "faults")
_HANDED_OVER = tuple(os.path.join(folder, "training", "task.py") for folder in _prefixes(_OURS))
# ``watch.run_step`` calls backward itself, on a loss it made of the user's function.
_LOOP = tuple(os.path.join(folder, "watching", "watch.py") for folder in _prefixes(_OURS))
_LIBRARIES = _prefixes(
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
)
# Folders of packages have such names: Debian has a second one.
_SITES = ("site-packages", "dist-packages")

_modules_known: tuple[int, list[str]] = (0, [])
_users: dict[str, bool] = {}
_foreign: dict[str, bool] = {}
"""Packages by name: whether all of their modules are somebody else's."""
_known: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


@lru_cache(maxsize=4096)
def kind_of(filename: str) -> str:
    """Whose code a file is: "torch" (and ours), "library" or "user"."""
    if filename.startswith("<") or not filename:
        # A notebook's cells have such names too, and their source is known.
        return "user" if filename.startswith("<ipython") else "torch"
    # There are thousands of modules: links are followed only where the name does not say enough.
    known = filename.startswith((*_TORCH, *_LIBRARIES))
    path = filename if known else os.path.realpath(filename)
    if path.startswith(_SCRIPTS) or path in _HANDED_OVER:
        return "user"
    if path in _LOOP:
        return "library"
    if path.startswith(_TORCH):
        return "torch"
    if path.startswith(_LIBRARIES) or any(f"{os.sep}{name}{os.sep}" in path for name in _SITES):
        return "library"
    return "library" if _installed(path) else "user"


def _installed(path: str) -> bool:
    """Whether a file lies where packages were installed to, as ``pip install --target`` does.

    Not the folder of the script, beside which some install what it needs.
    """
    script, *others = map(os.path.realpath, sys.path or [""])
    return any(
        path.startswith(os.path.join(folder, "")) and _holds_packages(folder)
        for folder in others
        if folder != script
    )


@lru_cache(maxsize=256)
def _holds_packages(folder: str) -> bool:
    """Whether a folder has the records of installed packages."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:
        return False


def package_folders() -> tuple[str, ...]:
    """The folders that packages lie in: those of Python, of torch and of holdfast."""
    return (*_LIBRARIES, *_TORCH)


@lru_cache(maxsize=256)
def is_ours(filename: str) -> bool:
    """Whether a file is holdfast's own, scripts of the catalogue of faults aside."""
    path = os.path.realpath(filename)
    return path.startswith(_prefixes(_OURS)) and not path.startswith(_SCRIPTS)


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
