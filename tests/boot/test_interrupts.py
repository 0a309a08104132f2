"""A first Ctrl-C passes over a worker of a loader; what its code handles is left to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.boot import _interrupts


class Rows:
    def __getitem__(self, number: int) -> int:
        return number


class Careful:
    def __getitem__(self, number: int) -> int:
        try:
            return number
        except KeyboardInterrupt:
            return -1


class Around:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_only_the_second_one_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(_interrupts.time, "monotonic", lambda: now[0])
    _interrupts.pass_over_the_first(Rows(), None)
    os.kill(os.getpid(), signal.SIGINT)
    now[0] += 0.5
    os.kill(os.getpid(), signal.SIGINT)
    now[0] += 1.0
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("dataset", [Careful(), Around(Careful())])
def test_code_that_handles_it_hears_it(dataset: Any) -> None:
    _interrupts.pass_over_the_first(dataset, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_script_stays() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _interrupts.pass_over_the_first(Rows())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
