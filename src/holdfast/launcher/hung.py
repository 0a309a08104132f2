"""End a process that hangs, with all that it has started: SIGTERM, which saves, then SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from ..run import ProcessMark
from ..types import Finding


class HungProcess:
    """Ends one process when it hangs.

    Args:
        pid: the process.
        grace: seconds between the two signals; None: it is never ended.
        clock: seconds, for tests.
        kill: sends a signal, for tests.
    """

    def __init__(
        self,
        pid: int,
        grace: float | None,
        clock: Callable[[], float] = time.monotonic,
        kill: Callable[[int, int], None] = os.kill,
    ) -> None:
        self.ended_for: Finding | None = None
        """Why it was ended; None while it was not."""
        self._pid, self._grace, self._clock, self._kill = pid, grace, clock, kill
        self._workers: list[ProcessMark] = []
        self._until = 0.0

    def tick(self, hung: Finding | None) -> None:
        """Called while the process runs: begin to end it, or make an end."""
        if self._grace is None:
            return
        if self.ended_for is None and hung is not None:
            self.ended_for = hung
            from . import stacks

            self._workers = [ProcessMark.of(pid) for pid in stacks.family(self._pid)[1:]]
            self._until = self._clock() + self._grace
            self._send(self._pid, signal.SIGTERM)
        elif self.ended_for is not None and self._clock() >= self._until:
            self._send(self._pid, signal.SIGKILL)

    def bury(self) -> None:
        """The process is gone: end its workers, which would wait for ever."""
        for worker in self._workers:
            if worker.is_alive():  # and not another process that got its id
                self._send(worker.pid, signal.SIGKILL)

    def _send(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._kill(pid, number)
