"""Distinguish a signal sent to this process alone from one sent to the process group.

Both look the same to the receiver, but need opposite handling: the first has to be forwarded to
the script, the second has reached it already, and a handler that saves and requeues must not run
twice. The signal probe is a forked child in the same group that only listens: a signal that it
receives too went to the whole group.
"""

from __future__ import annotations

import os
import select
import signal
import time
from types import TracebackType
from typing import NoReturn, Self

# How long a signal to the group may take to reach the probe; 0.05 was too short on two busy cores.
_PATIENCE = 0.25


class SignalProbe:
    """Lives as long as the ``with`` block; the signals must be blocked already."""

    def __init__(self, signals: set[signal.Signals]) -> None:
        self._signals = signals
        self._pid = 0
        self._pipe = -1
        self._heard: list[int] = []

    def __enter__(self) -> Self:
        reading, writing = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._listen(parent, writing)
        os.close(writing)
        self._pipe = reading
        return self

    def heard(self, number: int) -> bool:
        """Whether this signal went to the whole group."""
        until = time.monotonic() + _PATIENCE
        while number not in self._heard:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
                return False
            news = os.read(self._pipe, 64)
            if not news:
                return False
            self._heard += news
        self._heard.remove(number)
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)

    def _listen(self, parent: int, writing: int) -> NoReturn:
        # Nothing of the parent's is used after the fork but these two numbers.
        while os.getppid() == parent:
            info = signal.sigtimedwait(self._signals, 1.0)
            if info is not None:
                os.write(writing, bytes([info.si_signo]))
        os._exit(0)
