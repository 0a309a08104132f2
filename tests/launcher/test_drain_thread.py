"""A drain beside the training lets it have the interpreter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.launcher import drain_thread
from holdfast.launcher.drain_thread import DrainThread


class Work:
    """A drain with so many pieces of work a tick."""

    pause: Callable[[], None]

    def __init__(self, pieces: int) -> None:
        self.pieces, self.ticked = pieces, threading.Event()
        self.spent = self.took = 0.0

    def tick(self) -> int:
        if self.ticked.is_set():
            return 0
        began, own = time.perf_counter(), time.thread_time()
        for _ in range(self.pieces):
            end = time.thread_time() + 0.001
            while time.thread_time() < end:
                pass
            self.pause()
        self.spent, self.took = time.thread_time() - own, time.perf_counter() - began
        self.ticked.set()
        return 0

    def close(self) -> None:
        pass


def ticked(pieces: int) -> Work:
    work: Any = Work(pieces)
    thread = DrainThread(work, every=0.0)
    assert work.ticked.wait(30)
    thread.close()
    return work


def test_a_tick_takes_a_small_share_of_the_time(monkeypatch) -> None:
    work = ticked(5)
    assert work.spent / work.took < 1.5 * drain_thread._SHARE


def test_a_long_tick_does_not_sleep_for_ever(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(drain_thread.time, "sleep", slept.append)
    ticked(160)
    assert 0 < len(slept) < 160 and abs(sum(slept) - drain_thread._ASLEEP) < 1e-6


def test_a_tick_of_a_slow_processor_is_in_pieces_to_its_end(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(drain_thread.time, "sleep", slept.append)
    ticked(60)
    assert len(slept) == 60 and max(slept) < 0.2


def test_what_is_left_is_written_without_a_pause(monkeypatch) -> None:
    slept: list[float] = []
    work: Any = Work(3)
    thread = DrainThread(work, every=30.0)
    monkeypatch.setattr(drain_thread.time, "sleep", slept.append)
    work.close = work.tick
    thread.close()
    assert work.ticked.is_set() and not slept
