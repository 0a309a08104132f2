"""What keeps a worker busy, as its own thread saw it."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable

import pytest
from torch.utils.data._utils import worker

from holdfast.boot import patches
from holdfast.exams import worker_samples


def decode(until: float) -> int:
    total = 0
    while time.monotonic() < until:
        total += sum(i * i for i in range(2000))  # decodes
    return total


def waits(until: float) -> None:
    while time.monotonic() < until:
        time.sleep(0.01)


def _worker_loop(seconds: float) -> None:
    decode(time.monotonic() + seconds)


def line(function: Callable[..., object], text: str) -> int:
    import inspect

    rows, first = inspect.getsourcelines(function)
    return first + next(i for i, row in enumerate(rows) if text in row)


def ran(work: Callable[[float], object], seconds: float = 1.2) -> int:
    def run() -> None:
        worker_samples.begin()
        work(seconds)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0 and process.pid is not None
    return process.pid


def test_the_line_that_keeps_a_worker_busy():
    pid = ran(_worker_loop)
    look = worker_samples.look([pid], step=0.1, batch=4)
    assert look is not None
    named = look.lines[0]
    assert named.spot == (__file__, line(decode, "# decodes"))
    assert set(named.path) == {named.spot}  # and the expression in it, nothing of the loop
    # Busy all the time: a batch of four takes as long as a step.
    assert look.per_sample == pytest.approx(0.1 / 4, rel=0.2)


def test_nothing_is_known_of_a_worker_that_waits_or_never_was():
    idle = ran(lambda seconds: waits(time.monotonic() + seconds), 0.4)
    assert worker_samples.look([idle], step=0.1, batch=4) is None
    assert worker_samples.look([2**22 + 1], step=0.1, batch=4) is None
    assert worker_samples.look([], step=0.1, batch=4) is None


def test_a_spawned_worker_finds_its_loop_by_name():
    patches.install(lambda: None)
    try:
        assert pickle.loads(pickle.dumps(worker._worker_loop)) is worker._worker_loop
    finally:
        patches.uninstall()
