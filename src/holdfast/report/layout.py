"""Lines of styled text: laid out here, plain when piped, coloured on a terminal.

Reports are built from ``Line``s, so that the same text goes to a terminal, a file and a test.
The few colours are written out here: live lines may come from a thread beside a training, where
importing a library would hold the training up.
"""

from __future__ import annotations

import os
import re
import socket
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from ..harmless import visible_line, without_commands
from .terminal import NORMAL, Terminal
from .words import LONGEST, NBSP, shortened

WIDTH = NORMAL
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# A path with a folder or an extension, and maybe the number of a line.
_PATH = re.compile(r"([\w.~/@+-]*[\w~@+-]*[/.][\w./@+-]*\w)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line; ``style`` is made of the words bold, dim, red, green, yellow, cyan."""

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

    A text that nobody would read to its end is shortened.
    Paths and names are never cut: a word that is too long stands out of the margin instead.
    """
    start = max(column, len(label) + 1 if label else 0)
    rows = textwrap.wrap(
        shortened(text),
        max(20, width - indent - start),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
    lines: list[Line] = []
    for i, row in enumerate(rows):
        head = label.ljust(start) if i == 0 else " " * start
        lines.append(
            line(" " * indent, Span(head, label_style if i == 0 else ""), Span(row, style))
        )
    return lines


def diff_lines(diff: str, indent: int) -> list[Line]:
    """A change as a diff, never wrapped; its location is printed above."""
    styles = {"+": "green", "-": "red"}
    return [
        line(" " * indent, Span(row, styles.get(row[:1], "")))
        for row in diff.splitlines()
        if not row.startswith("@@")
    ]


def plain(lines: Iterable[Line]) -> str:
    """The lines without colours, each ending in a newline."""
    rows = ("".join(_text(span) for span in one) for one in lines)
    return "".join(without_commands(row).rstrip() + "\n" for row in rows)


def painted(lines: Iterable[Line], *, links: bool = False) -> str:
    """The lines with terminal colours; with ``links``, paths that exist can be clicked."""
    rows = ("".join(_painted(span, links) for span in one) for one in lines)
    return "".join(without_commands(row) + "\n" for row in rows)


def shown(lines: Iterable[Line], terminal: Terminal) -> str:
    """The lines as this terminal can show them."""
    return painted(lines, links=terminal.links) if terminal.colour else plain(lines)


def _text(span: Span) -> str:
    # Twice as long as a paragraph, which tells already what was left out of it.
    return visible_line(shortened(span.text, 2 * LONGEST)).replace(NBSP, " ")


def _painted(span: Span, links: bool) -> str:
    text = _text(span)
    if links:
        text = _linked(text)
    codes = ";".join(_CODES[word] for word in span.style.split() if word in _CODES)
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text.strip() else text


def _linked(text: str) -> str:
    """Text in which a path that exists is a link, with or without the number of a line."""
    whole = text.strip()
    if _is_path(whole):
        return text.replace(whole, _link(whole, whole))
    return _PATH.sub(
        lambda found: _link(found[1], found[0]) if _is_path(found[1]) else found[0], text
    )


def _link(path: str, text: str) -> str:
    target = f"file://{socket.gethostname()}{quote(os.fsencode(os.path.abspath(path)))}"
    return f"\x1b]8;;{target}\x1b\\{text}\x1b]8;;\x1b\\"


def _is_path(text: str) -> bool:
    # Longer ones raise on some systems.
    return 1 < len(text) < 1000 and ("/" in text or "." in text) and os.path.exists(text)
