"""Streams a run writes to: none of them can end it, and one bar does not cut their lines."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

# Carriage return and "erase line", as the guard's own live lines begin on a terminal.
CLEAR = "\r\x1b[2K"
# Seconds after which a line that somebody left open is taken for finished; a guess.
_LEFT_OPEN = 1.0
# What is assumed where the width is not known, as for a log file.
_WIDTH = 100


class Careful:
    """A stream for writing that never raises: a reader who has gone is no reason to stop.

    Characters its encoding does not know become ``?``.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write and flush, or do nothing where that is not possible any more."""
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError:
                self.stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            self.stream.flush()
        except (OSError, ValueError):  # a broken pipe, a full disk; a closed file
            return 0
        return len(text)

    def encodes(self, text: str) -> bool:
        """Whether the stream can show all of these characters."""
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    @property
    def width(self) -> int:
        """Columns of the terminal, of ``COLUMNS`` where that is set, or a usual width."""
        with contextlib.suppress(ValueError):
            if (given := int(os.environ.get("COLUMNS", ""))) > 0:
                return given
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(self.stream.fileno()).columns or _WIDTH
        return _WIDTH


class Passing:
    """Stands for ``sys.stdout`` or ``sys.stderr`` while a bar is drawn below what is printed.

    Text goes on to the stream as it is. Unlike a proxy that collects lines, this lets another
    bar or a prompt work as ever: ours waits until their line is over.

    Args:
        stream: what it stands for.
        hide: takes the bar away before somebody writes.
    """

    def __init__(self, stream: TextIO, hide: Callable[[], None]) -> None:
        self.stream = stream
        self._hide = hide
        self._open = 0.0  # when a line was begun and not ended, else 0

    def write(self, text: str) -> int:
        """Take the bar away, then write."""
        if not text:
            return 0
        if not self._open:
            self._hide()
        self._open = 0.0 if text.endswith(("\n", "\r")) else time.monotonic()
        return self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    @property
    def busy(self) -> bool:
        """Whether somebody is in the middle of a line."""
        return bool(self._open) and time.monotonic() - self._open < _LEFT_OPEN

    def finish(self) -> str:
        """What ends the line that somebody left open, if one did."""
        if not self._open:
            return ""
        self._open = 0.0
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()
        return "\n"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def is_terminal(stream: Any) -> bool:
    """Whether lines on this stream can be drawn over."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):
        return False


def reaches_a_person(handler: logging.Handler, level: int) -> bool:
    """Whether a logging handler writes records of this level where standard error goes."""
    if level < handler.level:
        return False
    if hasattr(handler, "console"):  # rich's
        return True
    if not isinstance(handler, logging.StreamHandler):
        return False
    stream = handler.stream
    if stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        return True
    try:
        return stream.fileno() in (1, 2)
    except (AttributeError, OSError, ValueError):
        return False
