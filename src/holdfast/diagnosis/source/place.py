"""Where in the user's code something happened: file, line, statement, and the module at work."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from .excerpts import source_of
from .files import from_here, kind_of, short_name

_COPIES = sys.version_info < (3, 13)
"""Whether ``f_locals`` of a function is a copy that stays."""


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
    if not _COPIES or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    copy = frame.f_locals
    # The frame's own, ours, and the one of the question: whoever else has it got it by locals().
    if sys.getrefcount(copy) <= 3:
        copy.clear()


def variable_of(frame: FrameType, name: str) -> Any:
    """One variable, with nothing left behind: each look at ``f_locals`` copies them all."""
    copy = frame.f_locals
    value = copy.get(name)
    optimized = _COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if optimized and sys.getrefcount(copy) <= 3:
        copy.clear()
    return value


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
            via = f"{short_name(library.file)}:{library.line}" if library is not None else ""
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


_ENTRY = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.M)


def place_in_traceback(entries: Iterable[str]) -> Place:
    """The user's line in a formatted stack, as autograd keeps one for every node it makes."""
    found = [m for entry in entries for m in _ENTRY.finditer(entry)]
    return _choose((m["file"], int(m["line"]), m["function"]) for m in reversed(found))


def place_told(file: str, line: int) -> dict[str, Any]:
    """A line as the data of an event: file as the user would write it, line, statement, excerpt."""
    source = source_of(file, line)
    at = {"file": from_here(file), "line": line}
    return at | {"code": source.code, "start": source.start, "excerpt": source.excerpt}
