"""Where in the user's code an operation was called: file, line, and the module at work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FrameType

from torch import nn

from ...source.frames import frames_from
from ...source.ownership import kind_of
from ...source.paths import short_name


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlace:
    """A line of somebody's code."""

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    """Dotted path of the module at work, as the model names it; empty outside of all."""
    library: str = ""
    """File and line inside a library, when the user's line only leads there."""


def place_of(frame: FrameType | None, names: Mapping[int, str]) -> CallPlace:
    """The innermost line of the user's own code, and the module whose method is running."""
    stack = [(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames_from(frame)]
    return _choose(stack, _module_at(frame, names))


def _choose(stack: Iterable[tuple[str, int, str]], module: str = "") -> CallPlace:
    """Pick the line to show from a stack of files, lines and functions, innermost first."""
    library: CallPlace | None = None
    for file, line, function in stack:
        kind = kind_of(file)
        if kind == "user":
            via = f"{short_name(library.file)}:{library.line}" if library is not None else ""
            return CallPlace(file=file, line=line, function=function, module=module, library=via)
        if kind == "library" and library is None:
            library = CallPlace(file=file, line=line, function=function, module=module)
    return library or CallPlace(module=module)


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


def place_in_traceback(entries: Iterable[str]) -> CallPlace:
    """The user's line in a formatted stack, as autograd keeps one for every node it makes."""
    found = [m for entry in entries for m in _ENTRY.finditer(entry)]
    return _choose((m["file"], int(m["line"]), m["function"]) for m in reversed(found))
