"""The writing end of one file of JSON lines, with a limit on how long it grows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.run import jsonl
from holdfast.run.durable import Appender


class Stream:
    """Takes objects with ``push`` and appends them with ``write``, one write for all.

    Beyond ``limit`` lines objects are counted in ``left_out`` and not written. ``write``
    may raise ``OSError`` and then still has every line.
    """

    def __init__(self, path: Path, limit: int | None, mark: int | None = None) -> None:
        """Go on behind the complete lines on disk; bytes beyond ``mark`` are cut off."""
        self.path = path
        self.left_out = 0
        self.pending_bytes = 0
        self._limit = limit
        self._pending: list[bytes] = []
        self._file: Appender | None = None
        known = jsonl.read_lines(path, stop=mark)
        self.size: int = known.end
        self._lines = len(known.objects) + known.corrupt

    @property
    def pending(self) -> bool:
        """Whether something pushed is not in the file yet."""
        return bool(self._pending)

    @property
    def full(self) -> bool:
        """Whether the limit is reached: further objects are only counted."""
        return self._limit is not None and self._lines >= self._limit

    def push(self, item: Mapping[str, Any], *, always: bool = False) -> None:
        """Remember one object; ``always`` also beyond the limit."""
        if self.full and not always:
            self.left_out += 1
            return
        line = jsonl.line(item)
        self._pending.append(line)
        self._lines += 1
        self.pending_bytes += len(line)

    def write(self) -> None:
        """Append what was pushed; the file is made when there is a first line for it."""
        if not self._pending:
            return
        if self._file is None:
            self._file = Appender(self.path, self.size)
        self._file.append(b"".join(self._pending))
        self.size = self._file.size
        self._pending.clear()
        self.pending_bytes = 0

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Let go of the file; it can be gone on with later."""
        if self._file is not None:
            self._file.close()
            self._file = None
