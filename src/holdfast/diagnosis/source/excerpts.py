"""The statement at a line of the user's code, and the lines around it."""

from __future__ import annotations

import linecache
import textwrap
from dataclasses import dataclass

from .loops import innermost

# Lines of code shown on either side.
_AROUND = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The statement at a line, and the lines around it."""

    code: str = ""
    start: int = 0
    excerpt: list[list[int | str]]


def source_of(file: str, line: int) -> Source:
    """Read the user's file as it is now, which is as it was imported a moment ago."""
    lines = linecache.getlines(file)
    if not 0 < line <= len(lines):
        return Source(excerpt=[])
    found = innermost(file, line)
    first = last = line
    if found is not None and not hasattr(found.node, "body"):
        first, last = found.node.lineno, found.node.end_lineno or line
    text = [line.rstrip("\n") for line in lines]
    low, high = max(1, first - _AROUND), min(len(text), last + _AROUND)
    return Source(
        code=textwrap.dedent("\n".join(text[first - 1 : last])),
        start=first,
        excerpt=[[n, text[n - 1]] for n in range(low, high + 1)],
    )
