"""A run that begins anew, over logs that the one before it has appended to: they are named.

Nothing is taken out of them. They are the user's, and a script that goes on by itself from a file
that it has saved appends to rows which it will not make again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from ..records.resuming import OutputOpened
from ..run import LaneReader, Run


def name_logs(run: Run, say: Callable[[str], object]) -> None:
    """Say which files hold rows of a run that was killed."""
    first: dict[str, int] = {}
    for lane in run.lanes():
        for event in LaneReader(run, lane).events():
            opened = OutputOpened.of(event)
            if opened is not None and opened.appends:
                first.setdefault(opened.file, opened.bytes)
    for path, size in first.items():
        with contextlib.suppress(OSError, ValueError):
            now = os.lstat(path)
            if stat.S_ISREG(now.st_mode) and now.st_size > size:
                say(f"holdfast: {path} holds rows of {run.path}, which may come a second time")
