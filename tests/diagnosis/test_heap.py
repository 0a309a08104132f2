"""The C library is asked for its memory as often as that is cheap."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from holdfast.diagnosis.memory import heap
from holdfast.diagnosis.memory.heap import Heap


@pytest.mark.parametrize(
    ("takes", "asked"), [(1e-6, 100), (1e-4, 20), (1e-2, 7)], ids=["cheap", "dear", "too_dear"]
)
def test_readings_keep_to_their_share(monkeypatch: pytest.MonkeyPatch, takes: float, asked: int):
    now = [0.0]
    monkeypatch.setattr(heap, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    readings, asks = Heap(), list[int]()

    def read() -> int:
        now[0] += takes
        asks.append(step)
        return step << 20

    readings._read = read
    for step in range(100):
        now[0] += 0.002
        readings.sample(step, 0.01)
    assert abs(len(asks) - asked) <= 1
    assert max(b - a for a, b in itertools.pairwise(asks)) <= 16
    # A rise by the megabyte is told with as few readings.
    if asked > 8:
        assert readings.slope() == pytest.approx(1 << 20)
