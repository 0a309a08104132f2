"""Which losses rows are about: lines, names, sums, and losses that the script divides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.report.losses import added_up, changes, losses_of
from holdfast.run import LaneData
from holdfast.types import Event

from .conftest import MakeEngine

PATHS = pytest.mark.parametrize("device_path", [False, True], ids=["host", "device"])


def lane_of(engine: Any) -> LaneData:
    """What was recorded, as readers of a run get it."""
    assert not engine.off, engine.memory.of_kind("holdfast_error")
    events = [
        Event(time=0.0, rank=0, step=step, kind=kind, data=data)
        for kind, step, data in engine.memory.events
    ]
    rows = engine.memory.rows()
    return added_up(
        LaneData(lane="r0", rank=0, steps=rows, tables={}, events=events, findings=[], batches=[])
    )


def names(lane: LaneData) -> list[str]:
    return [loss.called for loss in losses_of(lane)]


def gan(steps: int) -> tuple[list[float], list[float]]:
    torch.manual_seed(0)
    judge, maker = nn.Linear(4, 1), nn.Linear(2, 4)
    bce = nn.BCEWithLogitsLoss()
    opt_d = torch.optim.Adam(judge.parameters(), 1e-3)
    opt_g = torch.optim.Adam(maker.parameters(), 1e-3)
    ds: list[float] = []
    gs: list[float] = []
    for _ in range(steps):
        judge.zero_grad()
        err_real = bce(judge(torch.randn(8, 4) + 2), torch.ones(8, 1))
        err_real.backward()
        fake = maker(torch.randn(8, 2))
        err_fake = bce(judge(fake.detach()), torch.zeros(8, 1))
        err_fake.backward()
        opt_d.step()
        maker.zero_grad()
        err_g = bce(judge(fake), torch.ones(8, 1))
        err_g.backward()
        opt_g.step()
        ds.append(err_real.item() + err_fake.item())
        gs.append(err_g.item())
    return ds, gs


@PATHS
def test_the_losses_of_a_gan_are_two_with_names_and_lines(
    make_engine: MakeEngine, device_path: bool
) -> None:
    engine = make_engine(device_path=device_path)
    ds, gs = gan(100)
    engine.close()
    lane = lane_of(engine)
    d, g = losses_of(lane)
    assert (d.called, g.called) == ("err_real + err_fake", "err_g")
    assert f"{__name__.rpartition('.')[2]}.py:" in d.name and " and " in d.name
    assert d.made_by == g.made_by == ("BinaryCrossEntropyWithLogits",)
    rows = lane.steps
    assert rows["loss"][rows["opt"] == 0] == pytest.approx(ds, rel=1e-5)
    assert rows["loss"][rows["opt"] == 1] == pytest.approx(gs, rel=1e-5)
    assert changes(losses_of(lane)).startswith("losses err_real + err_fake (")


@PATHS
@pytest.mark.parametrize("how", ["divided", "variable", "multiplied", "whole"])
def test_an_accumulated_loss_is_recorded_as_the_script_sees_it(
    make_engine: MakeEngine, device_path: bool, how: str
) -> None:
    engine = make_engine(device_path=device_path)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    means: list[float] = []
    for _ in range(40):
        optimizer.zero_grad()
        parts: list[float] = []
        for _ in range(4):
            loss = net(torch.randn(8, 4)).square().mean() + 1.0
            parts.append(loss.item())
            if how == "variable":
                loss = loss / 4
                loss.backward()
            elif how == "divided":
                (loss / 4).backward()
            elif how == "multiplied":
                (loss * 0.25).backward()
            else:
                loss.backward()
        optimizer.step()
        means.append(sum(parts) / 4)
    engine.close()
    lane = lane_of(engine)
    assert names(lane) == ["loss"]
    assert lane.steps["loss"] == pytest.approx(means, rel=1e-5)
    known = lane.steps["loss_baseline"][~np.isnan(lane.steps["loss_baseline"])]
    assert all(1.0 < is_ordinary < 10.0 for is_ordinary in known), (
        "the baseline is in the same units"
    )


@PATHS
def test_losses_that_take_turns_with_one_optimizer_are_two_curves(
    make_engine: MakeEngine, device_path: bool
) -> None:
    engine = make_engine(device_path=device_path)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(150):
        optimizer.zero_grad()
        out = net(torch.randn(8, 4))
        if step % 16 == 15:
            penalty = 100 + out.square().mean()
            penalty.backward()
        else:
            loss = 1 + out.abs().mean()
            loss.backward()
        optimizer.step()
    engine.close()
    lane = lane_of(engine)
    main, other = losses_of(lane)
    assert (main.called, other.called) == ("loss", "penalty")
    assert 1 < main.first < 5 and 1 < main.last < 5 and other.first > 100 and other.last > 100


def test_a_loss_that_two_optimizers_share_is_one(make_engine: MakeEngine) -> None:
    engine = make_engine()
    one, two = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (one, two)]
    for _ in range(100):
        loss = two(one(torch.randn(8, 4))).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    engine.close()
    assert names(lane_of(engine)) == ["loss"]


def test_a_loss_that_comes_late_is_found(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(600):
        optimizer.zero_grad()
        if step < 300:
            first = 1 + net(torch.randn(8, 4)).square().mean()
            first.backward()
        else:
            second = 50 + net(torch.randn(8, 4)).abs().mean()
            second.backward()
        optimizer.step()
    engine.close()
    first, second = losses_of(lane_of(engine))
    assert (first.called, second.called) == ("first", "second")
    assert first.last < 10 < 50 < second.first, "no row of the one is taken for the other's"


def test_the_loss_of_an_optimizer_that_steps_late_has_its_name(make_engine: MakeEngine) -> None:
    engine = make_engine()
    net = nn.Linear(4, 1)
    last = torch.optim.LBFGS(net.parameters(), max_iter=4)
    first = torch.optim.Adam(net.parameters())
    x = torch.randn(8, 4)
    for _ in range(60):
        first.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        first.step()

    def closure() -> torch.Tensor:
        last.zero_grad()
        residual = net(x).abs().mean()
        residual.backward()
        return residual

    for _ in range(2):
        last.step(closure)  # type: ignore[arg-type]
    engine.close()
    assert names(lane_of(engine)) == ["loss", "residual"]
