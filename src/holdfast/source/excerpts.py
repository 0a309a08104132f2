"""A line of the user's code as findings show it: its statement and the lines around it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from .files import lines_of
from .paths import from_here
from .statements import statement_at

# Lines of code shown on either side.
_AROUND = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """A statement, dedented, and the lines around it with their numbers."""

    code: str = ""
    start: int = 0
    lines: tuple[tuple[int, str], ...] = ()


def excerpt_at(file: str, line: int) -> Excerpt:
    """Read the user's file as it is now, which is as it was imported a moment ago."""
    text = lines_of(file)
    if not 0 < line <= len(text):
        return Excerpt()
    found = statement_at(file, line)
    first = last = line
    if found is not None and not hasattr(found.node, "body"):
        first, last = found.node.lineno, found.node.end_lineno or line
    low, high = max(1, first - _AROUND), min(len(text), last + _AROUND)
    return Excerpt(
        code=textwrap.dedent("\n".join(text[first - 1 : last])),
        start=first,
        lines=tuple((n, text[n - 1]) for n in range(low, high + 1)),
    )


def place_reported(file: str, line: int) -> dict[str, Any]:
    """A line as the data of an event: file as the user would write it, line, statement, excerpt."""
    source = excerpt_at(file, line)
    at = {"file": from_here(file), "line": line}
    return at | {"code": source.code, "start": source.start, "excerpt": source.lines}
