"""The drain of a training that is its own launcher: ticked by a thread beside it."""

from __future__ import annotations

import os
import threading
import time

from .drain import Drain

# Of the time of a training process that a tick in it takes, in pieces of a tenth of a millisecond:
# short beside a step of some milliseconds, so that every step has its part and none has a tick.
_SHARE = 0.05
_PIECE = 0.0001
# Seconds that a tick sleeps at most, since findings have actions that wait for them; what is left
# of it then is done in one piece. A slow processor takes 60 ms for a tick, and a tick so 1.2 s.
_ASLEEP = 2.0


class DrainThread:
    """A drain ticked by a daemon thread, for library use.

    It shares the interpreter with the training, which needs it for every operation it launches: a
    tick of some ten milliseconds in one piece is a step that much longer. So a tick sleeps between
    small pieces of its work, as long as that does not hold it up for too long.
    """

    def __init__(self, drain: Drain, every: float = 0.2) -> None:
        self._drain = drain
        self._every = every
        self._since = self._left = 0.0
        drain.pause = self._pause
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="holdfast-drain", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.wait(self._every):
            self._since, self._left = time.thread_time(), _ASLEEP
            self._drain.tick()

    def _pause(self) -> None:
        """Between two pieces of work."""
        spent = time.thread_time() - self._since
        if spent < _PIECE or self._left <= 0 or self._stop.is_set():
            return
        wanted = min(spent * (1 / _SHARE - 1), self._left)
        time.sleep(wanted)
        self._left -= wanted
        self._since = time.thread_time()

    def close(self) -> None:
        """Stop the thread and write the rest. A forked child has no thread to stop."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._thread.join(timeout=30)
        if not self._thread.is_alive():
            self._drain.close()
