"""Output of a command: coloured on a terminal, plain in a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import UsageError
from ..harmless import visible, without_commands
from ..report import Line, Terminal, shown


def width() -> int:
    """Text width: that of the terminal within limits, the default elsewhere."""
    return Terminal.of(sys.stdout).width


def columns() -> int:
    """How wide a table may be; 0 where nothing limits it."""
    return Terminal.of(sys.stdout).columns


def show(lines: Sequence[Line]) -> None:
    """Print lines, in colour where standard output has it."""
    _print(shown(lines, Terminal.of(sys.stdout)))


def write(text: str, *, commands: bool = False) -> None:
    """Print text for people or programs, without anything that a terminal would act on.

    The log of a CI service obeys only ``commands``: those that we make for it.
    """
    _print(visible(text) if commands else without_commands(visible(text)))


def _print(text: str) -> None:
    """A character that the terminal has no code for becomes ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    # Now, so that a reader who has gone (head, less) is noticed while we can be quiet about it.
    sys.stdout.flush()


def give(text: str, path: str | None, *, commands: bool = False) -> None:
    """Write text to the file the user named, or print it."""
    if path:
        save(text, path)
    else:
        write(text, commands=commands)


def save(text: str, path: str) -> None:
    """Write text to a file the user named."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(visible(text))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; choose another file with --output"
        ) from error
