"""Let the supervisor ask where this process stands: the stacks of all threads, on a signal.

``faulthandler`` writes them from the signal handler itself, so that a process which is stuck in
native code tells them too. Then a handler in Python adds what the frames know (which worker and
which samples are waited for), as soon as the main thread executes Python again: at once where it
waits for a queue or a lock. Both write to a file in memory, which forked loader workers share.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from . import REPORTED, STACKS_FILE, STACKS_SIGNAL

# Behind the numbers that a script's own files get.
_LEAST_DESCRIPTOR = 200

_file = -1
_open_lane: Callable[[], object] | None = None


def answer_stacks(open_lane: Callable[[], object] | None = None) -> None:
    """Answer the signal from now on, unless the script or another library uses it.

    ``open_lane`` makes sure that this process has one in the run folder.
    """
    global _file, _open_lane
    _open_lane = open_lane
    if sys.platform != "linux" or _file >= 0:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
            return
        file = os.memfd_create(STACKS_FILE)
        with contextlib.suppress(OSError, ImportError):  # few descriptors are allowed
            import fcntl

            high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
            os.close(file)
            file = high
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(STACKS_SIGNAL, _tell)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=True)
        _file = file


def _tell(number: int, frame: FrameType | None) -> None:
    """Say what the main thread was doing; nothing of it may reach the script."""
    with contextlib.suppress(Exception):
        from ..diagnosis.waiting import work_of

        # What is told about it needs a lane; a loader worker has none.
        if multiprocessing.parent_process() is None and _open_lane is not None:
            _open_lane()
        reported = json.dumps(work_of(frame).to_dict(), default=str)
        os.write(_file, b"\n" + REPORTED + reported.encode() + b"\n")
