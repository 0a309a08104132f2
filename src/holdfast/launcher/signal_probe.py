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

# How long somebody who signals the processes of a job one by one may take from ours to the probe.
_PATIENCE = 0.25
# Taken from the queue after all that are asked about: its answer says that none of them is left.
_ASK = signal.SIGRTMIN
# A machine that gives the probe no time for so long is told nothing: the signal is forwarded.
_LIMIT = 30.0


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
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {_ASK})
        self._pid = os.fork()
        if self._pid == 0:
            self._listen(parent, writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writing)
        self._pipe = reading
        return self

    def heard(self, number: int) -> bool:
        """Whether this signal went to the whole group; for one that was just received.

        The probe may have had no processor since: not how long it is silent counts, but that it
        answers a question asked later. Another signal of this number that came meanwhile is one
        with the first in a process that was busy, so that it is here too.
        """
        self._read(_PATIENCE, number)
        if number not in self._heard:
            self._ask()
        if number not in self._heard:
            return False
        while signal.sigtimedwait({number}, 0) is not None:
            self._ask()
        self._heard = [other for other in self._heard if other != number]
        return True

    def _ask(self) -> None:
        os.kill(self._pid, _ASK)
        self._read(_LIMIT, _ASK)
        self._heard = [number for number in self._heard if number != _ASK]

    def _read(self, seconds: float, number: int) -> None:
        """Read what the probe says, until it says this number."""
        until = time.monotonic() + seconds
        while number not in self._heard:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
                return
            news = os.read(self._pipe, 64)
            if not news:
                return
            self._heard += news

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
            info = signal.sigtimedwait({*self._signals, _ASK}, 1.0)
            if info is not None:
                os.write(writing, bytes([info.si_signo]))
        os._exit(0)
