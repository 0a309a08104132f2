"""Ctrl-C and SIGTERM end a run between two steps, with everything saved."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# `timeout` signals its child and then the group of that child: one request, not two.
_ONE_REQUEST = 1.0  # seconds


class Interrupts:
    """Notes a request to stop; a second one is carried out at once, as without us."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may: elsewhere signals are somebody else's business.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self._asked_at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._asked_at > _ONE_REQUEST:
            self._give_back()
            signal.raise_signal(number)

    def _give_back(self) -> None:
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before)

    def __exit__(self, *exception: object) -> None:
        self._give_back()
