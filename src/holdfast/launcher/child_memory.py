"""Host memory of a run, read beside the training: what a process killed by the kernel cannot say.

Read every few seconds, more often where much of it is used. It becomes an Event when the used part
of the nearest limit passes one of a few levels, so that a run that is killed together with
holdfast has told how near it was.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ..records.crash import Died, HostMemoryLevel
from ..run import host_memory
from ..run.host_memory import MemoryLimit

LEVELS = (0.7, 0.8, 0.9, 0.95)
"""Used parts of a limit that are told when they are passed. A choice: a handful of events."""
_EASY = 0.6
# Below this the limit counts as far again; seconds between two readings, far from it and near.
_FAR, _SLOW, _QUICK = 0.5, 2.0, 0.4


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended, as ``wait4`` tells it."""

    pid: int
    status: int
    peak: int
    """The most bytes that it, or a child of its own, ever had."""

    @property
    def signal(self) -> str:
        """The signal that ended it; empty for none."""
        code = os.waitstatus_to_exitcode(self.status)
        try:
            return signal.Signals(-code).name if code < 0 else ""
        except ValueError:
            return f"signal {-code}"


@dataclass(slots=True)
class _Process:
    first: int = 0
    now: int = 0
    peak: int = 0


class ChildMemory:
    """Reads limits and processes; remembers what was read last."""

    def __init__(self) -> None:
        self._kills = host_memory.oom_kills()
        self._machine_kills = host_memory.machine_oom_kills()
        self._limit: MemoryLimit | None = None
        self._next = -math.inf
        self._level = 0
        self._processes: dict[int, _Process] = {}

    def look(self, pids: Iterable[int]) -> dict[int, HostMemoryLevel]:
        """Read, if that is due; the reading of each process when another level was reached."""
        now = time.monotonic()
        pids = list(pids)
        if now < self._next or not pids:
            return {}
        limits = host_memory.shared_limits()
        self._limit = max(limits, key=lambda limit: limit.share, default=None)
        share = 0.0 if self._limit is None else self._limit.share
        self._next = now + (_SLOW if share < _EASY else _QUICK)
        for pid in pids:
            seen = self._processes.setdefault(pid, _Process())
            size, peak = host_memory.resident(pid)
            if size:  # of one that has ended the last reading counts
                seen.first, seen.now, seen.peak = seen.first or size, size, peak
        if share >= _EASY:
            self._machine_kills = host_memory.machine_oom_kills()
        level = sum(share >= passed for passed in LEVELS)
        if level <= self._level and not (self._level and share < _FAR):
            return {}
        self._level = level
        return {pid: self._reading(pid) for pid in pids}

    def last_words(self, pid: int, ended: ChildEnd | None, at: float | None = None) -> Died:
        """What is known of the memory when a process was gone without a word of its own.

        Args:
            pid: the process.
            ended: how it ended, where it was our child.
            at: when that was, where it was seen.
        """
        read = self._reading(pid)
        seen = self._processes.get(pid, _Process())
        if ended is not None and ended.peak > seen.peak and read.used is not None:
            # It had more after the last reading than ever before, or was never read.
            rise = max(0, ended.peak - seen.now)
            read = read.replace(process=seen.now + rise, used=read.used + rise)
        kills = _risen(self._kills, host_memory.oom_kills())
        # Others on the machine are killed, too: only what came since the last reading counts.
        machine = _risen(self._machine_kills, host_memory.machine_oom_kills())
        return Died(
            **vars(read),
            signal="" if ended is None else ended.signal,
            oom_kills=kills,
            machine_oom_kills=machine,
            at=at,
        )

    def _reading(self, pid: int) -> HostMemoryLevel:
        limit, seen = self._limit, self._processes.get(pid, _Process())
        if limit is None:
            return HostMemoryLevel()
        return HostMemoryLevel(
            limit=limit.name,
            bytes=limit.bytes,
            used=limit.used,
            process=seen.now,
            first=seen.first,
        )


def _risen(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(0, now - before)
