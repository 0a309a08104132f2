"""Save before SIGTERM, SIGHUP or Ctrl-C ends a process whose script leaves the default in place.

Others that a scheduler sends before it ends a job (SIGUSR1 of SLURM) are named in the settings.

Python ends at once on these, past ``atexit``. The handler here saves and then lets the signal end
the process as it would have, with the same exit status. Where a script can be resumed, it lets the
step at work come to its end first, for some seconds at most: only where the loop asks for its next
batch are the script's variables known to fit the weights. It is installed where the disposition is
the default one, when training has begun; a script that sets its own handler later replaces it.
``signal.getsignal`` then shows a function in place of ``SIG_DFL``, which cannot be hidden.

Ctrl-C (SIGINT) becomes the same ``KeyboardInterrupt`` as without us, after the step at work: raised
where the loop asks for its next batch, and at once where nothing could be resumed from there. A
second one does not wait. What the script does about it, going on included, is its own business.

Several ranks agree on a step after which all of them save and end: a launcher sends the signal to
each, and one that ends by itself leaves the others in a collective. A rank whose step does not come
to its end in time, or whose company does not answer, saves by itself where its state is whole, and
one that is stuck in a collective is ended by a thread (``signal_watch``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Protocol

from ..probes.ranks import ranks
from .signal_watch import SignalWatch, end_now

SIGNALS = ("SIGTERM", "SIGHUP")
"""Those that are handled where nothing else is asked for."""

# `timeout` signals its child and then the group of that child: one request, not two.
_ONE_REQUEST = 1.0  # seconds
# Seconds for the main thread to come to its next instruction, and between two looks at that.
_STUCK = 2.0
_LOOK = 0.02

_installed: EndSignals | None = None


class EndsTraining(Protocol):
    """What is asked of a training that is about to end; nothing of it may raise."""

    def waits_at(self, frame: FrameType | None) -> FrameType | None:
        """Where the loop waits for its next batch, if it can be resumed from there."""
        ...

    def asks_soon(self) -> bool | None:
        """Whether it is in a step after which it can be resumed."""
        ...

    def save_last_state(self, why: str, at: FrameType | None = None) -> None:
        """Save; ``at``: where the loop asks for its next batch, None amid a step."""
        ...

    def ends_together(self, why: str) -> bool:
        """Ask all ranks to save and end after one step; False where that is not possible.

        This and what is below are called in a thread.
        """
        ...

    def left_alone(self) -> str:
        """Why the other ranks will not do so; empty while they may."""
        ...

    def not_saved(self, why: str) -> None:
        """The process ends without having saved."""
        ...


class EndSignals:
    """The handler of one training.

    Args:
        training: is saved.
        names: of the signals.
        wait: seconds that the step at work has to come to its end.
    """

    def __init__(
        self, training: EndsTraining, names: Iterable[str] = SIGNALS, wait: float = 0.0
    ) -> None:
        self.pending = 0
        """The signal that waits for the end of the step at work; 0 for none."""
        self._training, self._wait = training, wait
        self._signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
        self._taken: dict[signal.Signals, Any] = {}
        self._since: float | None = None
        self._timer: threading.Timer | None = None
        self._late = False
        self._saving = False
        self._watch: SignalWatch | None = None
        self._children: Any = None

    def install(self) -> None:
        """Handle the signals that have their default, where this process is no child of ours."""
        global _installed
        main = threading.current_thread() is threading.main_thread()
        if not main or multiprocessing.parent_process() is not None:
            return
        if ranks() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._watch = SignalWatch.start(self._heard)
            if self._watch is None:
                return
        defaults: dict[signal.Signals, Any] = dict.fromkeys(self._signals, signal.SIG_DFL)
        if self._watch is None:
            defaults[signal.SIGINT] = signal.default_int_handler
        for number, default in defaults.items():
            handler = signal.getsignal(number)
            # The one of a training before this, which was not closed, gives way.
            before = isinstance(getattr(handler, "__self__", None), EndSignals)
            if handler is default or before:
                signal.signal(number, self._handle)
                self._taken[number] = default
        _installed = self

    def remove(self) -> None:
        """Back to the default, where no other handler has been set meanwhile."""
        global _installed
        taken, self._taken = self._taken, {}
        self.pending = 0  # a script that has come to its end meanwhile has nothing to lose
        self._stop_waiting()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        for number, default in taken.items():
            # Only the main thread may set one.
            with contextlib.suppress(ValueError):
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, default)
        if _installed is self:
            _installed = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) != self._handle:
            return  # called by a handler that took our place: the default would not be called
        if self._since is not None:
            again = time.monotonic() - self._since > _ONE_REQUEST
            if self.pending:
                self.pending = number  # the newest request is the one that is met
            if self.pending and (again or self._late):
                self.finish(None)  # the step takes too long, or somebody is in a hurry
            elif again:
                self._end(number)  # a second request ends the process at once
            return
        self._since = time.monotonic()
        # Loader workers may have been sent the same signal: torch would raise here for their end.
        with contextlib.suppress(ValueError, AttributeError):
            self._children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.pending = number
        if self._watch is not None:
            if self._late:
                self.finish(None)
            return  # the thread that has heard of it asks the other ranks
        at = self._training.waits_at(frame)
        if at is not None:
            self.finish(at)
        elif self._wait > 0 and self._training.asks_soon():
            self._timer = threading.Timer(self._wait, self._overdue)
            self._timer.daemon = True
            self._timer.start()
        else:
            self.finish(None)

    def finish(self, at: FrameType | None) -> None:
        """Save and end the process; ``at``: where the loop asks for its next batch."""
        number, self.pending = self.pending, 0
        self._since, self._saving = time.monotonic(), True
        self._stop_waiting()
        interrupt = number == signal.SIGINT
        try:
            # One that ends the process is saved then, as without this handler.
            if at is not None or not interrupt:
                name = "KeyboardInterrupt" if interrupt else signal.Signals(number).name
                self._training.save_last_state(name, at)
        finally:
            self._end(number)

    def finish_together(self, name: str, save: Callable[[], bool]) -> None:
        """All ranks are at the step after which they end: save and do so."""
        self.pending, self._saving = getattr(signal, name), True
        try:
            saved = save()
        except Exception:
            saved = False
        if saved:
            self._end(self.pending)
        else:
            self.finish(None)

    @property
    def alone(self) -> bool:
        """Whether this process has no company to end with."""
        return self._watch is None

    def _heard(self, number: int) -> None:
        """In a thread, with several ranks: see to it that the process ends in time."""
        if not self._ours(number) or self._saving:
            return  # others are heard of too: real-time ones have no name
        name, training = signal.Signals(number).name, self._training
        asked = training.ends_together(name)
        if asked and not self._waits(number, self._wait, lambda: not training.left_alone()):
            return
        self._late = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, number)
        if self._waits(number, _STUCK, lambda: True):
            training.not_saved(name)
            end_now(number)

    def _waits(self, number: int, seconds: float, goes_on: Callable[[], bool]) -> bool:
        """Wait for the main thread to begin to save; whether it has not, and still should."""
        until = time.monotonic() + seconds
        while self._ours(number) and not self._saving:
            if time.monotonic() > until or not goes_on():
                return True
            time.sleep(_LOOK)
        return False

    def _ours(self, number: int) -> bool:
        return number in self._taken and signal.getsignal(number) == self._handle

    def _overdue(self) -> None:
        """In a thread: the step at work is still not over."""
        number, main = self.pending, threading.main_thread().ident
        self._late = True
        if number and main is not None:
            signal.pthread_kill(main, number)

    def _stop_waiting(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _end(self, number: int) -> None:
        if number == signal.SIGINT:
            self._goes_on()
            raise KeyboardInterrupt
        self.remove()
        signal.raise_signal(number)

    def _goes_on(self) -> None:
        """The script may catch it and train on: be as before it came."""
        self.pending, self._since, self._late, self._saving = 0, None, False, False
        self._stop_waiting()
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            signal.signal(signal.SIGCHLD, self._children)


def _forked() -> None:
    """A child has nothing to save and ends at once, as without us."""
    if _installed is not None:
        _installed.remove()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
