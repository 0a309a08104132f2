"""Where in the user's code something happened: file, line, statement, and the module at work."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

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


def _prefixes(*folders: str | None) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(f), "") for f in folders if f)


_TORCH = _prefixes(os.path.dirname(torch.__file__), str(Path(__file__).parents[2]))
# The catalogue's faults are training scripts that happen to live in our package.
_SCRIPTS = _prefixes(str(Path(__file__).parents[2] / "faults"))
# ``watch.run_step`` calls backward itself, on a loss it made of the user's function.
_LOOP = os.path.realpath(Path(__file__).parents[2] / "watching/watch.py")
_LIBRARIES = _prefixes(
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
)

LIBRARIES = tuple(
    os.path.join(folder, "")
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (folder := sysconfig.get_path(name))
)
"""The same folders by the names that modules go by, links not followed."""


@lru_cache(maxsize=4096)
def kind_of(filename: str) -> str:
    """Whose code a file is: "torch" (and ours), "library" or "user"."""
    if filename.startswith("<") or not filename:
        # A notebook's cells have such names too, and their source is known.
        return "user" if filename.startswith("<ipython") else "torch"
    path = os.path.realpath(filename)
    if path.startswith(_SCRIPTS):
        return "user"
    if path == _LOOP:
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
    stack = [(f.f_code, f.f_lineno) for f in frames_from(frame)]
    return choose(stack, module=_module_at(frame, names))


def choose(stack: Iterable[tuple[CodeType | str, int]], module: str = "") -> Place:
    """Pick the line to show from a stack of code objects (or file names), innermost first."""
    library: tuple[str, int, str] | None = None
    for code, line in stack:
        file, function = (code, "") if isinstance(code, str) else (code.co_filename, code.co_name)
        kind = kind_of(file)
        if kind == "torch":
            continue
        if kind == "user":
            return Place(
                file=file,
                line=line,
                function=function,
                module=module,
                library=f"{_short(library[0])}:{library[1]}" if library else "",
            )
        library = library or (file, line, function)
    if library is None:
        return Place(module=module)
    file, line, function = library
    return Place(file=file, line=line, function=function, module=module)


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
    for folder in (*_LIBRARIES, *_TORCH):
        if os.path.realpath(path).startswith(folder):
            return os.path.realpath(path)[len(folder) :]
    return path


_ENTRY = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.M)


def place_in_traceback(entries: Iterable[str]) -> Place:
    """The user's line in a formatted stack, as autograd keeps one for every node it makes."""
    found = [m for entry in entries for m in _ENTRY.finditer(entry)]
    place = choose([(m["file"], int(m["line"])) for m in reversed(found)])
    for match in reversed(found):
        if match["file"] == place.file and int(match["line"]) == place.line:
            function = match["function"]
            return Place(file=place.file, line=place.line, function=function, library=place.library)
    return place


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
    first, last = _statement("".join(lines), place.line)
    text = [line.rstrip("\n") for line in lines]
    low, high = max(1, first - _AROUND), min(len(text), last + _AROUND)
    return Source(
        code=_dedented(text[first - 1 : last]),
        start=first,
        excerpt=[[n, text[n - 1]] for n in range(low, high + 1)],
    )


def _statement(source: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost simple statement around a line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return line, line
    best = (line, line)
    size = sys.maxsize
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or node.end_lineno is None:
            continue
        if hasattr(node, "body"):
            continue
        if node.lineno <= line <= node.end_lineno and node.end_lineno - node.lineno < size:
            best, size = (node.lineno, node.end_lineno), node.end_lineno - node.lineno
    return best


def _dedented(lines: list[str]) -> str:
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(x[margin:] if not x[:margin].strip() else x.lstrip() for x in lines)


def place_told(file: str, line: int) -> dict[str, Any]:
    """A line as the data of an event: file as the user would write it, line, statement, excerpt."""
    source = source_at(Place(file=file, line=line))
    return {
        "file": from_here(file),
        "line": line,
        "code": source.code,
        "excerpt": source.excerpt,
    }


def from_here(file: str) -> str:
    """A path as seen from the working directory, where it lies below it."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except FileNotFoundError:
        return file  # the directory is gone
