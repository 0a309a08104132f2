"""Lines of styled text: laid out here, plain when piped, coloured by rich on a terminal.

Reports are built from ``Line``s, so that the same text goes to a terminal, a file and a test,
and rich is needed only for the colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .words import NBSP

WIDTH = 88


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line; ``style`` is a word rich understands, or nothing."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def line(*parts: str | Span) -> Line:
    """A line of plain and styled pieces."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def paragraph(
    text: str, *, label: str = "", indent: int = 0, column: int = 0, width: int = WIDTH,
    style: str = "", label_style: str = "",
) -> list[Line]:  # fmt: skip
    """Wrapped text behind a label; following lines start below the text, not the label.

    Paths and names are never cut: a word that is too long stands out of the margin instead.
    """
    start = max(column, len(label) + 1 if label else 0)
    rows = textwrap.wrap(
        text, max(20, width - indent - start), break_long_words=False, break_on_hyphens=False
    ) or [""]
    lines: list[Line] = []
    for i, row in enumerate(rows):
        head = label.ljust(start) if i == 0 else " " * start
        lines.append(
            line(" " * indent, Span(head, label_style if i == 0 else ""), Span(row, style))
        )
    return lines


def plain(lines: Iterable[Line]) -> str:
    """The lines without colours, each ending in a newline."""
    text = "".join("".join(span.text for span in one).rstrip() + "\n" for one in lines)
    return text.replace(NBSP, " ")


def painted(lines: Iterable[Line], console: Any = None) -> str:
    """The lines with terminal colours; without rich they stay plain."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return plain(lines)
    # soft_wrap: the text is laid out already; rich must not wrap it again.
    console = console or Console(force_terminal=True, highlight=False)
    with console.capture() as capture:
        for one in lines:
            text = Text()
            for span in one:
                text.append(span.text.replace(NBSP, " "), style=span.style)
            console.print(text, soft_wrap=True)
    return capture.get()
