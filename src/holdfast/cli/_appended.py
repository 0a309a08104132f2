"""A run that begins anew, over logs that the one before it has appended to: they are named.

Nothing is taken out of them. They are the user's, and a script that goes on by itself from a file
that it has saved appends to rows which it will not make again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any

from ..run import LaneReader, Run
from ..run.script_files import OUTPUT


def name_logs(run: Run, say: Callable[[str], object]) -> None:
    """Say which files hold rows of a run that was killed."""
    first: dict[str, Mapping[str, Any]] = {}
    for lane in run.lanes():
        for event in LaneReader(run, lane).events():
            if event.kind == OUTPUT and event.data.get("appends"):
                first.setdefault(str(event.data.get("file")), event.data)
    for path, about in first.items():
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            now = os.lstat(path)
            if stat.S_ISREG(now.st_mode) and now.st_size > int(about["bytes"]):
                say(f"holdfast: {path} holds rows of {run.path}, which may come a second time")
