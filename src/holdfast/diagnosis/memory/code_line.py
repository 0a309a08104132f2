"""A line of the script as the records of memory have it."""

from __future__ import annotations

from ...records.memory import CodeLine, Seen
from ...source.excerpts import place_reported


def code_line(file: str, line: int, seen: Seen = "") -> CodeLine:
    """The file as the user would write it, the line, its statement and the lines around it."""
    return CodeLine.from_dict(place_reported(file, line)).replace(seen=seen)
