"""When processes end, in their order: of ranks that die together one was the first.

A launcher ends the other ranks within a tenth of a second; the drain looks twice a second. Here a
thread waits for the end of all of them at once, which costs nothing until one comes.
"""

from __future__ import annotations

import os
import select
import threading
import time

# Seconds after which processes that were added are waited for, too.
_AGAIN = 0.2


class EndTimes:
    """Notes the time at which processes end; knows nothing on a system without ``pidfd_open``."""

    def __init__(self) -> None:
        self._ended: dict[int, float] = {}
        self._watched: dict[int, int] = {}
        """Process by its file descriptor."""
        self._known: set[int] = set()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        """Wait for the end of this process, too."""
        if pid in self._known or not hasattr(os, "pidfd_open"):
            return
        self._known.add(pid)
        try:
            self._watched[os.pidfd_open(pid)] = pid
        except OSError:
            return  # it has ended already
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._wait, name="holdfast-ends", daemon=True)
            self._thread.start()

    def of(self, pid: int) -> float | None:
        """When it ended; None where that was not seen."""
        if pid not in self._ended:
            self._look(0.0)  # on a busy machine whoever asks may be faster than the thread
        return self._ended.get(pid)

    def _wait(self) -> None:
        while self._watched:
            self._look(_AGAIN)

    def _look(self, seconds: float) -> None:
        poll = select.poll()
        for descriptor in list(self._watched):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(seconds * 1e3):
            pid = self._watched.pop(descriptor, None)
            if pid is not None:  # or the other of the two who look was faster
                self._ended[pid] = time.time()
                os.close(descriptor)
