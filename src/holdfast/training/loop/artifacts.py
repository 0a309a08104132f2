"""After the last step, before the report: a task may leave things in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...errors import HoldfastError, RunFolderError
from ...run import Ring, Run

# Seconds to wait for the record to be on disk; the drain comes by five times a second.
_PATIENCE = 1.0
_PAUSE = 0.02


def tell_ended(ended: Callable[[Path], None], run: Run, say: Callable[[str], None]) -> None:
    """Call ``Task.ended``; what goes wrong there is a line, and the run ends as it would have."""
    deadline = time.monotonic() + _PATIENCE
    while not _is_on_disk(run) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    try:
        ended(run.path)
    except Exception as error:
        reason = " ".join(str(error).split())
        if not isinstance(error, HoldfastError):
            reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        say(f"holdfast: training is over, but what the task does afterwards failed: {reason}")


def _is_on_disk(run: Run) -> bool:
    """Whether nothing waits in a ring: then the files of the run are complete."""
    for lane in run.lanes():
        path = run.ring_path(lane)
        try:
            # An empty file is a lane that was claimed and has no ring yet.
            if not path.exists() or path.stat().st_size == 0:
                continue
            ring = Ring.attach(path, readonly=True)
        except (OSError, RunFolderError):
            continue  # gone meanwhile, or never to be drained
        try:
            if ring.peek(limit=1):
                return False
        finally:
            ring.detach()
    return True
