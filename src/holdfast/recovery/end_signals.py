"""Save before a signal ends the process: SIGTERM and SIGHUP, where the script leaves the default.

Python ends at once on these, past ``atexit``. The handler here saves and then lets the signal end
the process as it would have, with the same exit status. It is installed where the disposition is
the default one, when training has begun; a script that sets its own handler later replaces it.
``signal.getsignal`` then shows a function in place of ``SIG_DFL``, which cannot be hidden.

Python runs handlers between two instructions of the main thread. A process that is stuck in a
collective of torch would not end, so that a process of several ranks keeps the default.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from ..probes.ranks import ranks

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

# `timeout` signals its child and then the group of that child: one request, not two.
_ONE_REQUEST = 1.0  # seconds

_installed: EndSignals | None = None


class EndSignals:
    """The handler of one training.

    Args:
        save: called with the name of the signal; must not raise.
    """

    def __init__(self, save: Callable[[str], object]) -> None:
        self._save = save
        self._taken: list[signal.Signals] = []
        self._since: float | None = None

    def install(self) -> None:
        """Handle the signals that have their default; only in a process that trains alone."""
        global _installed
        alone = ranks() == 1 and int(os.environ.get("WORLD_SIZE", "1")) == 1
        main = threading.current_thread() is threading.main_thread()
        if not alone or not main or multiprocessing.parent_process() is not None:
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # The one of a training before this, which was not closed, gives way.
            before = isinstance(getattr(handler, "__self__", None), EndSignals)
            if handler is signal.SIG_DFL or before:
                signal.signal(number, self._handle)
                self._taken.append(number)
        _installed = self

    def remove(self) -> None:
        """Back to the default, where no other handler has been set meanwhile."""
        global _installed
        taken, self._taken = self._taken, []
        for number in taken:
            # Only the main thread may set one.
            with contextlib.suppress(ValueError):
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, signal.SIG_DFL)
        if _installed is self:
            _installed = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) != self._handle:
            return  # called by a handler that took our place: the default would not be called
        if self._since is not None:
            if time.monotonic() - self._since > _ONE_REQUEST:
                self._end(number)  # a second request ends the process at once
            return
        self._since = time.monotonic()
        # Loader workers may have been sent the same signal: torch would raise here for their end.
        with contextlib.suppress(ValueError, AttributeError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self._save(signal.Signals(number).name)
        finally:
            self._end(number)

    def _end(self, number: int) -> None:
        self.remove()
        signal.raise_signal(number)


def _forked() -> None:
    """A child has nothing to save and ends at once, as without us."""
    if _installed is not None:
        _installed.remove()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
