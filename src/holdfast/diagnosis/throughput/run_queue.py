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


# Part of the work of the busiest thread from which on a thread works, too.
_WORKS = 0.2

Threads = dict[str, tuple[float, float]]
"""By thread of this process: seconds on a processor, and in line for one."""


def longest(before: Threads, now: Threads) -> float:
    """Seconds in line of the working thread that stood there longest in between.

    >>> longest({"1": (1.0, 1.0), "2": (0.0, 0.0)}, {"1": (2.0, 1.5), "2": (0.1, 0.75)})
    0.5
    """
    first = {name: before.get(name, (0.0, 0.0)) for name in now}
    ran = {name: now[name][0] - first[name][0] for name in now}
    works = [name for name in now if ran[name] >= _WORKS * max(ran.values())]
    return max((now[name][1] - first[name][1] for name in works), default=0.0)


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

    def of_threads(self) -> Threads:
        """Seconds so far, by thread; empty where nobody counts them.

        A pass over several cores waits for the slowest of its threads, which shows in no other
        number: the loop's own thread turns on the spot meanwhile.
        """
        found: Threads = {}
        try:
            for thread in os.listdir(_TASKS)[:_THREADS]:
                file = os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    ran, stood = os.pread(file, 96, 0).split()[:2]
                    found[thread] = int(ran) * 1e-9, int(stood) * 1e-9
                finally:
                    os.close(file)
        except (OSError, ValueError, IndexError):
            return found
        return found

    @staticmethod
    def _read(file: int) -> int:
        # Nanoseconds on a processor, nanoseconds in line for one, how often it got one.
        return int(os.pread(file, 96, 0).split()[1])
