"""What our kernels cost where the device is behind the host, and where it waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from holdfast.guard import kernel_cost
from holdfast.guard.kernel_cost import KernelCost
from holdfast.probes.step_record import StepRecord


class Event:
    """One that the device has come to, or not yet when our part is over; 3 ms to the next one."""

    behind = False

    def __init__(self, **_: object) -> None:
        self.asked = 0

    def record(self) -> None: ...

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 1 or not self.behind

    def elapsed_time(self, _: object) -> float:
        return 3.0


@pytest.mark.parametrize(
    ("behind", "host", "seconds"), [(True, 0.002, 0.003), (False, 0.002, 0.001), (False, 0.5, 0.0)]
)
def test_what_the_device_takes_beyond_the_host(
    monkeypatch: pytest.MonkeyPatch, behind: bool, host: float, seconds: float
):
    clock: Iterator[float] = iter((1.0, 1.0 + host))
    monkeypatch.setattr(Event, "behind", behind)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(kernel_cost, "perf_counter", lambda: next(clock))
    cost, record = KernelCost(), StepRecord(0, 0)
    began = cost.begin()
    assert began is not None
    cost.end(record, began)
    assert cost.hidden is behind and record.row["guard_hidden"] == behind
    record.cost_events[0][1].query()  # the device comes to the end meanwhile
    assert cost.seconds(record) == pytest.approx(seconds)
