"""Rows of short steps on a CPU wait for each other; nothing that comes later overtakes them."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from holdfast.guard import waiting_rows
from holdfast.guard.engine import Engine

from .conftest import MakeEngine, MemoryRecorder

LEARNT = 200
"""Steps after which the pace of a loop is known, and with it how many rows are kept together."""


class Loop:
    """A plain loop in the hands of a test."""

    def __init__(self, engine: Engine) -> None:
        torch.manual_seed(0)
        self.engine = engine
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.taken = 0

    def run(self, steps: int, pause: float = 0.0) -> None:
        for _ in range(steps):
            self.taken += 1
            generator = torch.Generator().manual_seed(self.taken)
            x: Tensor = torch.randn(8, 4, generator=generator)
            self.model(x).square().mean().backward()
            time.sleep(pause)
            self.optimizer.step()
            self.optimizer.zero_grad()

    @property
    def recorder(self) -> MemoryRecorder:
        return self.engine.state.training.recorder  # type: ignore[return-value]

    @property
    def written(self) -> int:
        return len(self.recorder.rows())

    @property
    def behind(self) -> int:
        """Steps without a row."""
        return self.taken - self.written


@pytest.fixture
def loop(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(waiting_rows, "_LATE", 1e9)  # however slow the machine is
    loop = Loop(make_engine(explain=False))
    loop.run(LEARNT)
    loop.engine.state.writer.budget.together = 8
    for _ in range(64):
        if loop.behind == 3:
            return loop
        loop.run(1)
    raise AssertionError("no three rows have ever waited")


def test_rows_come_together_in_their_order(loop: Loop) -> None:
    counts = list[int]()
    for _ in range(5):
        loop.run(1)
        counts.append(loop.behind)
    assert counts == [4, 5, 6, 7, 0]
    steps = loop.recorder.rows()["step"]
    assert list(steps) == list(range(steps[0], steps[0] + len(steps)))


def test_an_event_does_not_overtake_them(loop: Loop) -> None:
    loop.engine.note("told", loop.engine.steps, {})
    assert loop.behind == 0


def test_a_step_that_is_not_usual_does_not_overtake_them(loop: Loop) -> None:
    with torch.no_grad():
        loop.model.weight.grad = torch.full_like(loop.model.weight, torch.nan)
    loop.optimizer.step()
    loop.taken += 1
    assert loop.behind == 0
    rows = loop.recorder.rows()
    assert rows["skipped"][-1] == 1 and (rows["step"][1:] > rows["step"][:-1]).all()


def test_who_asks_for_the_latest_row_gets_it(loop: Loop) -> None:
    loss = loop.engine.latest["loss"]
    assert loop.behind == 0 and loss == pytest.approx(loop.recorder.rows()["loss"][-1])


def test_at_the_end_all_are_written(loop: Loop) -> None:
    loop.engine.end()
    assert loop.behind == 0


def test_who_listens_hears_each_step_when_it_is_over(loop: Loop) -> None:
    heard = list[float]()
    loop.engine.each_row(lambda row: heard.append(row["loss"]))
    loop.run(1)
    assert len(heard) == 4 and loop.behind == 0
    loop.run(1)
    assert len(heard) == 5


def test_a_loop_that_becomes_slow_is_not_waited_for(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_rows, "_LATE", 0.01)
    loop.run(1, pause=0.02)
    assert loop.behind == 0


def test_rows_of_long_steps_do_not_wait(loop: Loop) -> None:
    loop.engine.state.writer.budget.together = 1
    loop.run(1)
    assert loop.behind == 0
