"""Whose code a file is, and how its path is written; without torch, which a script may not have."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
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


# How IPython itself names a cell.
_CELL = re.compile(r"Cell In\s?\[(\d+)\]")
_OURS = Path(__file__).parents[2]
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


def short_name(path: str) -> str:
    """A file of a library from its package on."""
    real = os.path.realpath(path)
    return next((real[len(f) :] for f in (*_LIBRARIES, *_TORCH) if real.startswith(f)), path)


@lru_cache(maxsize=256)
def is_ours(filename: str) -> bool:
    """Whether a file is holdfast's own, scripts of the catalogue of faults aside."""
    path = os.path.realpath(filename)
    return path.startswith(_prefixes(_OURS)) and not path.startswith(_SCRIPTS)


def cell_of(file: str) -> str:
    """``cell 3`` for the file that IPython has made of a cell of a notebook; empty for others."""
    module = sys.modules.get("IPython")
    shell = None if module is None else getattr(module, "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = _CELL.fullmatch(" ".join(named(file) or ())) if named is not None else None
    return f"cell {found[1]}" if found else ""


def from_here(file: str) -> str:
    """A path as seen from the working directory, where it lies below it; a cell by its number."""
    if cell := cell_of(file):
        return cell
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except FileNotFoundError:
        return file  # the directory is gone
