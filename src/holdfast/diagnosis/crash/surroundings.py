"""The world around a crash, as evidence for its cause: ranks, dead workers, memory, the output.

Words of an exception fit several worlds: "Connection reset by peer" is said of a rank, of a server
and of a loader worker. What is measured here tells which of them is there.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from typing import Any, cast

from ...records.crash import Disk, MemoryReading, RaisedException
from ...run.host_memory import machine_oom_kills, nearest, oom_kills, shared_limits
from ...source.paths import from_here
from .shared_memory import bus_error
from .traceback_frames import TracebackEntry

# Kills for lack of memory before this process trained: those that follow may be of its workers.
_KILLED_BEFORE = oom_kills()
_MACHINE_BEFORE = machine_oom_kills()
_WRITING = re.compile(r"PytorchStreamWriter|unexpected pos|file write failed|Errno 28|Errno 122")
# Milliseconds until a worker that has just died is known to be dead.
_REAPED = 200


def world() -> RaisedException:
    """How many processes train together, this one counted."""
    reported = os.environ.get("WORLD_SIZE", "")
    size = int(reported) if reported.isdigit() else 1
    if "torch" in sys.modules:
        from ...probes.ranks import ranks

        size = max(size, ranks())
    return RaisedException(world=size)


def output(error: BaseException) -> RaisedException:
    """Which of our outputs nobody reads any more, where a write into a pipe failed."""
    if not isinstance(error, BrokenPipeError):
        return RaisedException()
    for name, number in (("stdout", 1), ("stderr", 2)):
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        if any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0)):
            return RaisedException(output_gone=name)
    return RaisedException()


def dead_workers(message: str, calls: Sequence[TracebackEntry]) -> RaisedException:
    """Loader workers that have ended other than by returning, and what memory may say of it."""
    workers: list[Any] = []
    for call in reversed(calls):
        found = getattr(call.frame.f_locals.get("self"), "_workers", None)
        if call.file.endswith("dataloader.py") and isinstance(found, list):
            workers = cast("list[Any]", found)
            break
    ended = _ended(workers)
    if not ended and "DataLoader worker" not in message:
        return RaisedException()
    limit = nearest(shared_limits())
    found = RaisedException(
        dead_workers=ended,
        oom_kills=_risen(_KILLED_BEFORE, oom_kills()),
        machine_oom_kills=_risen(_MACHINE_BEFORE, machine_oom_kills()),
        memory=None
        if limit is None
        else MemoryReading(limit=limit.name, bytes=limit.bytes, used=limit.used),
    )
    if "Bus error" in message or any(code == -signal.SIGBUS for *_, code in ended):
        return bus_error(calls, len(workers), found)
    return found


def disk(message: str, calls: Sequence[TracebackEntry]) -> RaisedException:
    """What is left on the disk that a file was being written to."""
    if not _WRITING.search(message):
        return RaisedException()
    paths = [call.frame.f_locals.get(name) for call in calls for name in ("f", "file", "path")]
    given = next((p for p in reversed(paths) if isinstance(p, str | os.PathLike)), "")
    folder = os.path.dirname(os.path.abspath(given)) if given else os.getcwd()
    left = os.statvfs(folder)
    free = left.f_bavail * left.f_frsize
    # A file system without a table of files says 0 of 0.
    files = left.f_favail if left.f_files else None
    return RaisedException(disk=Disk(folder=from_here(folder), free=free, files=files))


def _ended(workers: list[Any]) -> tuple[tuple[int, int | None, int], ...]:
    """Number, process id and exit code of the workers that did not end as they should."""
    from multiprocessing.connection import wait

    wait([worker.sentinel for worker in workers], timeout=_REAPED / 1000)
    return tuple(
        (number, worker.pid, worker.exitcode)
        for number, worker in enumerate(workers)
        if worker.exitcode not in (None, 0)
    )


def _risen(before: int | None, now: int | None) -> int | None:
    """By how much a counter has risen; None where it cannot be read."""
    return None if before is None or now is None else now - before
