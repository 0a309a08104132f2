"""Hears of a signal at once, also while the main thread is in native code.

Python runs handlers between two instructions of the main thread. One that waits in a collective
for a rank that is gone comes to no next instruction, and a process with a handler would then not
end by SIGTERM at all. The interpreter writes the number of a signal to a pipe when it arrives; a
thread reads it there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable


class SignalWatch:
    """Calls ``heard`` with the number of each signal that has a handler in Python, in a thread."""

    def __init__(self, heard: Callable[[int], None]) -> None:
        self._heard = heard
        self._from, self._to = os.pipe()
        os.set_blocking(self._to, False)
        self._owner = os.getpid()

    @classmethod
    def start(cls, heard: Callable[[int], None]) -> SignalWatch | None:
        """Begin, in the main thread; None where somebody else hears of signals this way."""
        watch = cls(heard)
        before = signal.set_wakeup_fd(watch._to, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            watch._shut()
            return None
        threading.Thread(target=watch._listen, name="holdfast-signals", daemon=True).start()
        return watch

    def close(self) -> None:
        """Hear of nothing more; a fork does so too, and leaves the pipe to its parent."""
        with contextlib.suppress(ValueError):  # only the main thread may
            ours = signal.set_wakeup_fd(-1)
            if ours not in (-1, self._to):
                signal.set_wakeup_fd(ours)
            os.close(self._to)
            if os.getpid() != self._owner:
                os.close(self._from)

    def _shut(self) -> None:
        os.close(self._from)
        os.close(self._to)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while numbers := os.read(self._from, 64):
                for number in numbers:
                    self._heard(number)
        os.close(self._from)


def end_now(number: int) -> None:
    """End this process by a signal as if it had no handler, from any thread."""
    # Python lets only the main thread set a disposition, and that one does not come.
    ctypes.CDLL(None).signal(number, ctypes.c_void_p(0))
    os.kill(os.getpid(), number)
