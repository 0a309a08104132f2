"""How the path of a file is written for people."""

from __future__ import annotations

import os
import re
import sys

from .ownership import package_folders

# How IPython itself names a cell.
_CELL = re.compile(r"Cell In\s?\[(\d+)\]")


def short_name(path: str) -> str:
    """A file of a library from its package on."""
    real = os.path.realpath(path)
    return next((real[len(f) :] for f in package_folders() if real.startswith(f)), path)


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
