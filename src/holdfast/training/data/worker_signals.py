"""Signals that reach a whole process group end the run, not the workers below it.

Ctrl-C in a terminal, ``timeout`` and batch systems send their signal to every process of a run. The
one that trains then finishes its step and saves, for which it needs its workers; torch raises an
error in it wherever it is as soon as one of them dies. So workers end only when it says so.
"""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["obey_only"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def obey_only(owner: int) -> None:
    """In a worker: pass over SIGINT, and SIGTERM unless the process ``owner`` has sent it.

    A worker whose owner has died ends by itself: torch looks every few seconds.
    """
    if not hasattr(signal, "sigwaitinfo"):
        return  # macOS: who has sent a signal cannot be asked
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    threading.Thread(target=_wait, args=(owner,), name="holdfast-signals", daemon=True).start()


def _wait(owner: int) -> None:
    while True:
        sent = signal.sigwaitinfo(_SIGNALS)
        if sent.si_signo == signal.SIGTERM and sent.si_pid == owner:
            os._exit(0)
