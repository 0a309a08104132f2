"""Where in the user's code something happened: file, line, statement, and the module at work."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from .loops import innermost

# Lines of code shown on either side.
_AROUND = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A line of somebody's code."""

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    """Dotted path of the module at work, as the model names it; empty outside of all."""
    library: str = ""
    """File and line inside a library, when the user's line only leads there."""


def _prefixes(*folders: str | Path | None) -> tuple[str, ...]:
    """Folders as modules name them, and with all links followed."""
    known = [str(folder) for folder in folders if folder]
    return tuple(os.path.join(folder, "") for folder in (*known, *map(os.path.realpath, known)))


_OURS = Path(__file__).parents[2]
_TORCH = _prefixes(os.path.dirname(torch.__file__), _OURS)
# The catalogue's faults are training scripts that happen to live in our package. All that a
# ``Task`` of the trainer holds was made by the user's recipe.
_SCRIPTS = _prefixes(_OURS / "faults")
_HANDED_OVER = tuple(os.path.join(folder, "training", "task.py") for folder in _prefixes(_OURS))
# ``watch.run_step`` calls backward itself, on a loss it made of the user's function.
_LOOP = tuple(os.path.join(folder, "watching", "watch.py") for folder in _prefixes(_OURS))
_LIBRARIES = _prefixes(
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
)


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
    if path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path:
        return "library"
    return "user"


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Those of the user's own code, innermost first."""
    return (at for at in frames_from(frame) if kind_of(at.f_code.co_filename) == "user")


def user_line(frame: FrameType | None) -> tuple[str, int] | None:
    """File and line of the innermost one; None where there is none."""
    return next(((at.f_code.co_filename, at.f_lineno) for at in user_frames(frame)), None)


def forget_locals(frame: FrameType) -> None:
    """Drop the copy of a function's variables that looking at ``f_locals`` has left behind.

    Before Python 3.13 it stays with the frame and keeps tensors alive that the function has long
    let go. Never to be called from within a trace function: there the copy is written back.
    """
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    copy = frame.f_locals
    # The frame's own, ours, and the one of the question: whoever else has it got it by locals().
    if sys.getrefcount(copy) <= 3:
        copy.clear()


def place_of(frame: FrameType | None, names: Mapping[int, str]) -> Place:
    """The innermost line of the user's own code, and the module whose method is running."""
    stack = [(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames_from(frame)]
    return _choose(stack, _module_at(frame, names))


def _choose(stack: Iterable[tuple[str, int, str]], module: str = "") -> Place:
    """Pick the line to show from a stack of files, lines and functions, innermost first."""
    library: Place | None = None
    for file, line, function in stack:
        kind = kind_of(file)
        if kind == "user":
            via = f"{_short(library.file)}:{library.line}" if library is not None else ""
            return Place(file=file, line=line, function=function, module=module, library=via)
        if kind == "library" and library is None:
            library = Place(file=file, line=line, function=function, module=module)
    return library or Place(module=module)


def _module_at(frame: FrameType | None, names: Mapping[int, str]) -> str:
    for caller in frames_from(frame):
        # By name and not through f_locals of every frame: that would copy all of them.
        if caller.f_code.co_varnames[:1] != ("self",):
            continue
        owner = caller.f_locals.get("self")
        if isinstance(owner, nn.Module) and names.get(id(owner)):
            return names[id(owner)]
    return ""


def _short(path: str) -> str:
    real = os.path.realpath(path)
    return next((real[len(f) :] for f in (*_LIBRARIES, *_TORCH) if real.startswith(f)), path)


_ENTRY = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.M)


def place_in_traceback(entries: Iterable[str]) -> Place:
    """The user's line in a formatted stack, as autograd keeps one for every node it makes."""
    found = [m for entry in entries for m in _ENTRY.finditer(entry)]
    return _choose((m["file"], int(m["line"]), m["function"]) for m in reversed(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The statement at a line, and the lines around it."""

    code: str = ""
    start: int = 0
    excerpt: list[list[int | str]]


def source_at(place: Place) -> Source:
    """Read the user's file as it is now, which is as it was imported a moment ago."""
    lines = linecache.getlines(place.file)
    if not 0 < place.line <= len(lines):
        return Source(excerpt=[])
    found = innermost(place.file, place.line)
    first = last = place.line
    if found is not None and not hasattr(found.node, "body"):
        first, last = found.node.lineno, found.node.end_lineno or place.line
    text = [line.rstrip("\n") for line in lines]
    low, high = max(1, first - _AROUND), min(len(text), last + _AROUND)
    return Source(
        code=textwrap.dedent("\n".join(text[first - 1 : last])),
        start=first,
        excerpt=[[n, text[n - 1]] for n in range(low, high + 1)],
    )


def place_told(file: str, line: int) -> dict[str, Any]:
    """A line as the data of an event: file as the user would write it, line, statement, excerpt."""
    source = source_at(Place(file=file, line=line))
    at = {"file": from_here(file), "line": line}
    return at | {"code": source.code, "excerpt": source.excerpt}


def from_here(file: str) -> str:
    """A path as seen from the working directory, where it lies below it."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except FileNotFoundError:
        return file  # the directory is gone
