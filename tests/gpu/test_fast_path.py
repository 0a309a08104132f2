"""On a GPU a step in few words is the step the long way: one launch decides, the rows agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.guard import finite_loss
from holdfast.guard.fast.bursts import StepBursts
from holdfast.guard.fast.device_fast_path import DeviceFastPath
from holdfast.records.columns import TIMES

from ..guard.conftest import MakeEngine, MemoryRecorder, make_engine, own_steps
from ..guard.trainers import Accelerated, Closing, Trainer

__all__ = ["make_engine"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

# Of the host, of the clock, and of the allocator.
_OTHER = {
    "losses",
    *TIMES,
    "time",
    "guard",
    "guard_device",
    "guard_hidden",
    "rss",
    "mem_allocated",
    "mem_reserved",
}


class Loop:
    """A training of 150 steps with three bad batches and an outlier, as people write it."""

    def __init__(self, kind: str, norm: bool) -> None:
        torch.manual_seed(3)
        middle = nn.BatchNorm1d(64) if norm else nn.Tanh()
        self.model = nn.Sequential(nn.Linear(32, 64), middle, nn.Linear(64, 1)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.kind, self.read = kind, [0.0]

    def run(self, after_step: Callable[[], None]) -> None:
        scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=20)
        scaler = scaler if "scaled" in self.kind else torch.amp.GradScaler("cuda", enabled=False)
        read: list[Tensor] = []
        for step in range(150):
            for part in range(3 if "accumulated" in self.kind else 1):
                loss = self.model(self.batch(step + 1000 * part)).square().mean()
                scaler.scale(loss).backward()
                read.append(loss.detach())
            if "clipped" in self.kind:
                scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad()
            after_step()
        self.read = torch.stack(read).tolist()

    @staticmethod
    def batch(step: int) -> Tensor:
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
        if step in (40, 41, 77):
            x[3] = torch.nan
        return (x * (300.0 if step == 120 else 1.0)).cuda()


def trained(
    make_engine: MakeEngine, kind: str, norm: bool, *, waits: bool = True
) -> tuple[MemoryRecorder, Loop]:
    engine = make_engine(budget=1.0, explain=False)
    loop = Loop(kind, norm)
    # After a bad step the weights are looked at, from the step on in which that is known.
    loop.run(engine.await_rows if waits else lambda: None)
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    return engine.memory, loop  # type: ignore[attr-defined]


@pytest.mark.parametrize("norm", [False, True], ids=["", "batchnorm"])
@pytest.mark.parametrize("kind", ["plain", "clipped", "scaled", "scaled and clipped"])
def test_both_ways_are_one(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, kind: str, norm: bool
) -> None:
    opened: list[bool] = []
    original = DeviceFastPath.open

    def counted(self, *about):  # type: ignore[no-untyped-def]
        found = original(self, *about)
        opened.append(found is not None)
        return found

    monkeypatch.setattr(DeviceFastPath, "open", counted)
    short, here = trained(make_engine, kind, norm)
    assert sum(opened) > 100
    for way in ("open", "clip"):
        monkeypatch.setattr(DeviceFastPath, way, lambda *_: None)
    long, there = trained(make_engine, kind, norm)
    compare((short, here), (long, there), _OTHER)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step that a burst was asked about was its own."""
    return own_steps(monkeypatch)


@pytest.mark.parametrize("norm", [False, True], ids=["", "batchnorm"])
@pytest.mark.parametrize(
    "kind",
    [
        *("plain", "clipped", "scaled", "scaled and clipped"),
        *("accumulated", "scaled, clipped, accumulated"),
    ],
)
def test_a_burst_changes_nothing_but_when_rows_are_written(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    own: list[bool],
    kind: str,
    norm: bool,
) -> None:
    short = trained(make_engine, kind, norm, waits=False)
    assert sum(own) > 30
    monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
    long = trained(make_engine, kind, norm, waits=False)
    compare(short, long, _OTHER | {"param_bad", "param_layer"})


class Skipping(Loop):
    """Without a guard: the steps are not made that it would skip."""

    def __init__(self, skipped: set[int]) -> None:
        super().__init__("plain", norm=True)
        self.skipped = skipped

    def run(self, after_step: Callable[[], None]) -> None:
        for step in sorted(set(range(150)) - self.skipped):
            self.model(self.batch(step)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_a_step_skipped_in_a_burst_leaves_no_trace_in_buffers(
    make_engine: MakeEngine, own: list[bool]
) -> None:
    plain = Skipping({40, 41, 77})
    plain.run(lambda: None)
    memory, loop = trained(make_engine, "plain", True, waits=False)
    assert sum(own) > 30
    assert set(np.flatnonzero(memory.rows()["skipped"]).tolist()) == plain.skipped
    one, other = loop.model.state_dict().values(), plain.model.state_dict().values()
    assert all(map(torch.equal, one, other))


class ByTrainer(Loop):
    """The same by a trainer; what it reads is what its root was made of."""

    def __init__(self, kind: Trainer) -> None:
        super().__init__("", norm=False)
        self.trainer = kind(self.model)
        self.optimizer = self.trainer.optimizer

    def run(self, after_step: Callable[[], None]) -> None:
        read: list[Tensor] = []
        for loss in self.trainer.steps(map(self.batch, range(150)), lambda step: None):
            read.append(loss)
            after_step()
        # Those of a closure are its own.
        self.read = torch.stack(read).nan_to_num(-1.0).tolist()


@pytest.mark.parametrize("kind", [Accelerated, Closing])
def test_the_steps_of_trainers_are_the_same(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, own: list[bool], kind: Trainer
) -> None:
    ways: list[tuple[MemoryRecorder, Loop]] = []
    for _ in ("burst", "fast path", "losses without a kernel"):
        engine, loop = make_engine(budget=1.0, explain=False), ByTrainer(kind)
        loop.run(lambda: None)
        engine.close()
        assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
        ways.append((engine.memory, loop))  # type: ignore[attr-defined]
        if len(ways) == 1:
            assert sum(own) > 30
            monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
        else:
            monkeypatch.setattr(finite_loss, "writer_for", lambda loss: None)
    for way in ways[1:]:
        compare(ways[0], way, _OTHER | {"param_bad", "param_layer"})
    assert (min(ways[0][1].read) >= 0.0) == (kind is Accelerated)


def compare(
    one: tuple[MemoryRecorder, Loop], other: tuple[MemoryRecorder, Loop], but: set[str]
) -> None:
    """The same weights, losses and rows, but for these columns."""
    (short, here), (long, there) = one, other
    assert all(
        map(torch.equal, here.model.state_dict().values(), there.model.state_dict().values())
    )
    assert here.read == there.read and np.isfinite(here.read).all()
    rows, others = short.rows(), long.rows()
    assert rows["loss_bad"].sum() == 3
    for column in rows.dtype.names or ():
        if column not in but:
            # Blocks of a gradient are added up in any order.
            np.testing.assert_allclose(rows[column], others[column], 1e-5, err_msg=column)
