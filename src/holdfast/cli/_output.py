"""Output of a command: coloured on a terminal, plain in a pipe or a file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from ..errors import UsageError
from ..report import (
    WIDTH,
    Line,
    painted,
    plain,
)

# Longer lines are hard to read, however wide the terminal is.
_WIDEST = 100


def width() -> int:
    """Text width: that of the terminal within limits, the default elsewhere."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(40, min(_WIDEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def show(lines: Sequence[Line]) -> None:
    """Print lines, in colour on a terminal without ``NO_COLOR``."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    write(painted(lines) if colour and os.environ.get("TERM") != "dumb" else plain(lines))


def write(text: str) -> None:
    """Print text as it is; a character the terminal has no code for becomes ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    # Now, so that a reader who has gone (head, less) is noticed while we can be quiet about it.
    sys.stdout.flush()


def save(text: str, path: str) -> None:
    """Write text to a file the user named."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; choose another file with --output"
        ) from error
