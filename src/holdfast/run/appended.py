"""What is recorded of a file that a script opens for writing: enough to know it again; no torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from holdfast.regular_files import open_regular

OUTPUT = "output"
"""The event of a file that the script opens for writing for the first time."""
KEPT = "cut_off"
"""The folder in that of a run with what was cut off of the files of a script."""
_FOOT = 1 << 16


def foot(path: str, size: int) -> str:
    """What the last bytes before a place in a file are known by."""
    with open_regular(path) as file:
        file.seek(max(0, size - _FOOT))
        return hashlib.sha256(file.read(min(size, _FOOT))).hexdigest()


def about(path: str, before: os.stat_result | None, opened: Any) -> Mapping[str, Any]:
    """A file that was opened for appending, as the data of an event.

    Args:
        path: of it.
        before: what it was then; None where it was not there.
        opened: the open file.
    """
    size, now = before.st_size if before is not None else 0, os.fstat(opened.fileno())
    inode = [now.st_dev, now.st_ino]
    told = {"appends": True, "made": before is None, "inode": inode}
    return {**told, "foot": foot(path, size)}
