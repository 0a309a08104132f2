"""Time in which a thread was ready to run and another one had the processor.

On a busy machine most steps that look like stalls are this, and no line of the script did it. Linux
counts it for every thread; elsewhere it is not known.
"""

from __future__ import annotations

import os
import threading


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

    @staticmethod
    def _read(file: int) -> int:
        # Nanoseconds on a processor, nanoseconds in line for one, how often it got one.
        return int(os.pread(file, 96, 0).split()[1])
