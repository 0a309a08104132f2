"""Time in which a thread was ready to run and another one had the processor.

On a busy machine most steps that look like stalls are this, and no line of the script did it. Linux
counts it for every thread; elsewhere it is not known.
"""

from __future__ import annotations

import os
import threading

_TASKS = "/proc/self/task"
# Threads that are asked, the oldest first: a pool has one for each core.
_THREADS = 256


def longest(before: dict[str, float], now: dict[str, float]) -> float:
    """Seconds in line of the thread that stood there longest in between.

    >>> longest({"1": 1.0, "2": 0.5}, {"1": 1.5, "2": 0.75, "3": 0.25})
    0.5
    """
    return max((now[name] - before.get(name, 0.0) for name in now), default=0.0)


class RunQueue:
    """The thread that asks first."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._known = True
        self._last = 0

    def waited(self) -> float:
        """Seconds since the last call; 0 where nobody counts them."""
        if not self._known:
            return 0.0
        try:
            if self._file is None:
                path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._last = self._read(self._file)
            now = self._read(self._file)
        except (OSError, ValueError, IndexError):
            self._known = False
            return 0.0
        waited, self._last = now - self._last, now
        return waited * 1e-9

    def close(self) -> None:
        """Ask no more."""
        self._known = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def of_threads(self) -> dict[str, float]:
        """Seconds in line so far, by thread of this process; empty where nobody counts them.

        A pass over several cores waits for the slowest of its threads, which shows in no other
        number: the loop's own thread turns on the spot meanwhile.
        """
        found: dict[str, float] = {}
        try:
            for thread in os.listdir(_TASKS)[:_THREADS]:
                file = os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    found[thread] = self._read(file) * 1e-9
                finally:
                    os.close(file)
        except (OSError, ValueError, IndexError):
            return found
        return found

    @staticmethod
    def _read(file: int) -> int:
        # Nanoseconds on a processor, nanoseconds in line for one, how often it got one.
        return int(os.pread(file, 96, 0).split()[1])
