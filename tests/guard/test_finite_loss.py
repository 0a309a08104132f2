"""What a script reads of its loss after a skipped step."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.config import GuardSettings, RunSettings, Settings, WatcherSettings

from .conftest import MakeEngine
from .test_no_host_reads import NoScalars, no_reads

__all__ = ["no_reads"]
NAN = float("nan")
PATHS = pytest.mark.parametrize("device_path", [False, True], ids=["host", "device"])


class Loop:
    """A loop as people write it: its average is taken after the step."""

    def __init__(self, steps: int = 8, bad: tuple[int, ...] = (3,), value: float = NAN) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.data = torch.randn(steps, 16, 4)
        self.bad, self.value = bad, value
        self.read: list[float] = []

    def loss(self, step: int) -> Tensor:
        loss = self.net(self.data[step]).square().mean() + 1.0
        return loss * self.value if step in self.bad else loss

    def run(self, backward: Callable[[Tensor], Any] = Tensor.backward) -> list[float]:
        for step in range(len(self.data)):
            loss = self.loss(step)
            self.optimizer.zero_grad()
            backward(loss)
            self.optimizer.step()
            self.read.append(loss.item())
        return self.read


@PATHS
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_a_bad_loss_reads_as_the_last_finite_one_and_the_row_keeps_it(
    make_engine: MakeEngine, device_path: bool, value: float
) -> None:
    engine = make_engine(device_path=device_path, explain=False)
    read = Loop(bad=(3, 4), value=value).run()
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert read[3] == read[4] == read[2] and math.isfinite(sum(read))
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    assert rows["skipped"].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert [str(x) for x in rows["loss"][3:5]] == [str(value)] * 2
    assert rows["loss"][[2, 5]].tolist() == pytest.approx([read[2], read[5]])


@PATHS
def test_a_loss_that_is_fine_keeps_its_bits(make_engine: MakeEngine, device_path: bool) -> None:
    plain = Loop(bad=()).run()
    make_engine(device_path=device_path)
    assert Loop(bad=()).run() == plain


@PATHS
@pytest.mark.parametrize("divided", [lambda loss: loss / 4, lambda loss: loss * 0.25])
def test_the_variable_behind_a_division_by_a_number(
    make_engine: MakeEngine, device_path: bool, divided: Callable[[Tensor], Tensor]
) -> None:
    make_engine(device_path=device_path, explain=False)
    loop = Loop()

    def backward(loss: Tensor) -> None:
        divided(loss).backward()

    read = loop.run(backward)
    assert read[3] == pytest.approx(read[2])


@PATHS
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_loss_behind_a_scaler(
    make_engine: MakeEngine, device_path: bool, accumulate: int
) -> None:
    make_engine(device_path=device_path, explain=False)
    loop = Loop()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(6):
        loss = loop.loss(step)
        scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        loop.read.append(loss.item())
    assert loop.read[3] == pytest.approx(loop.read[2])


@PATHS
def test_a_loss_that_the_script_changes_in_place(
    make_engine: MakeEngine, device_path: bool
) -> None:
    """``loss *= 4`` after backward must not be read as the last loss the next time."""
    make_engine(device_path=device_path, explain=False)
    loop = Loop(bad=(4, 6))
    for step in range(8):
        loss = loop.loss(step)
        loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        with torch.no_grad():
            loss *= 4
        loop.read.append(loss.item() / 4)
    assert loop.read[4] == pytest.approx(loop.read[3])
    assert loop.read[6] == pytest.approx(loop.read[5])


@PATHS
def test_two_losses_of_a_step_are_told_apart(make_engine: MakeEngine, device_path: bool) -> None:
    """As in a GAN: each loss reads as its own last one."""
    make_engine(device_path=device_path, explain=False)
    one, other = Loop(), Loop()
    for step in range(6):
        first, second = one.loss(step), other.loss(step) * 100
        first.backward()
        one.optimizer.step()
        second.backward()
        other.optimizer.step()
        one.read.append(first.item())
        other.read.append(second.item())
    assert one.read[3] == one.read[2] and other.read[3] == other.read[2]


@PATHS
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_graph_that_is_kept_keeps_its_loss(make_engine: MakeEngine, device_path: bool) -> None:
    make_engine(device_path=device_path, explain=False)
    assert math.isnan(Loop().run(lambda loss: loss.backward(retain_graph=True))[3])
    assert math.isnan(Loop().run(lambda loss: loss.backward(create_graph=True))[3])
    loop = Loop()
    assert math.isnan(loop.run(lambda loss: loss.backward(inputs=list(loop.net.parameters())))[3])
    assert math.isnan(loop.run(lambda loss: loss.backward(inputs=loop.net.weight))[3])


@PATHS
def test_views_and_leaves_are_left_alone(make_engine: MakeEngine, device_path: bool) -> None:
    make_engine(device_path=device_path, explain=False)
    loop = Loop()
    for step in range(5):
        pair = torch.stack([loop.loss(step), torch.ones(())])
        pair[0].backward()
        loop.optimizer.step()
        loop.read.append(pair[0].item())
    assert math.isnan(loop.read[3])
    leaf = torch.tensor(NAN, requires_grad=True)
    leaf.backward()
    assert leaf.isnan()


@PATHS
def test_an_optimizer_with_a_closure_sees_what_there_is(
    make_engine: MakeEngine, device_path: bool
) -> None:
    make_engine(device_path=device_path, explain=False)
    loop = Loop()
    for step in range(5):

        def closure(step: int = step) -> Tensor:
            loop.optimizer.zero_grad()
            loss = loop.loss(step)
            loss.backward()
            loop.read.append(loss.item())
            return loss

        loop.optimizer.step(closure)  # type: ignore[arg-type]
    assert math.isnan(loop.read[3])


@PATHS
@pytest.mark.parametrize("setting", [{"keep_nan": True}, {"skip": False}])
def test_who_wants_the_nan_gets_it(
    make_engine: MakeEngine, device_path: bool, setting: dict[str, bool]
) -> None:
    make_engine(device_path=device_path, explain=False, **setting)
    assert math.isnan(Loop().run()[3])


@PATHS
def test_weights_that_nobody_guards_keep_the_nan(
    make_engine: MakeEngine, device_path: bool
) -> None:
    make_engine(device_path=device_path, explain=False)
    weight = torch.ones(3, requires_grad=True)
    (weight.sum() * 2.0).backward()
    loss = weight.sum() * NAN
    loss.backward()
    assert loss.isnan()


def test_the_average_of_an_epoch_and_the_plateau_go_on_making_sense(
    make_engine: MakeEngine,
) -> None:
    make_engine()
    loop = Loop(steps=12, bad=(5,))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer, patience=0)
    data = torch.utils.data.DataLoader(list(loop.data), batch_size=1)  # type: ignore[arg-type]
    best, total = math.inf, 0.0
    for step, x in enumerate(data):
        loss = loop.net(x).square().mean() + 1.0
        if step == 5:
            loss = torch.log(loss * 0.0 - 1.0)
        loop.optimizer.zero_grad()
        loss.backward()
        loop.optimizer.step()
        total += loss.item()
        best = min(best, loss.item())
        plateau.step(loss.item() - step)
    assert math.isfinite(total / 12) and 1.0 <= best < 20.0
    assert loop.optimizer.param_groups[0]["lr"] == 0.01


def test_nothing_is_read_on_the_device_path(make_engine: MakeEngine, no_reads: list[str]) -> None:
    engine = make_engine(device_path=True, explain=False)
    loop = Loop(steps=40, bad=(7, 8, 21))
    for step in range(40):
        if step == 3:
            no_reads.clear()
        loss = loop.loss(step)
        with NoScalars() if step > 2 else torch.no_grad(), torch.enable_grad():
            (loss / 4).backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert no_reads == []
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert engine.memory.rows()["skipped"].sum() == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("weight", [1.0, 0.25])
@pytest.mark.parametrize("keep", [False, True])
def test_a_watched_loop_reads_the_same(tmp_path: Path, weight: float, keep: bool) -> None:
    loop = Loop()
    settings = Settings(
        guard=GuardSettings(keep_nan=keep, explain=False),
        run=RunSettings(dir=str(tmp_path / "run")),
        watchers=WatcherSettings(memory=False, time=False),
    )
    with holdfast.watch(
        loop.net, loop.optimizer, settings=settings, say=lambda line: None
    ) as watch:
        for step in range(6):
            loss = loop.loss(step)
            watch.backward(loss, weight=weight)
            watch.step()
            loop.read.append(loss.item())
    assert math.isnan(loop.read[3]) if keep else loop.read[3] == loop.read[2]
