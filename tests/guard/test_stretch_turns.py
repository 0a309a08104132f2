"""Several optimizers in a stretch: the same rows, weights, losses and skips as without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from holdfast.guard.stretch import Stretch
from holdfast.guard.stretches import Stretches
from holdfast.probes.comparable import _KEPT, Comparability

from . import host_kernels
from .conftest import MakeEngine, MemoryRecorder
from .test_stretch import _OTHER

STEPS = 70
BAD_D, BAD_G = (22, 59), (14, 42)


def noise(step: int, *bad: int) -> Tensor:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    if step in bad:
        x[3] = torch.nan
    return x * (300.0 if step == 66 else 1.0)


def net(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, out))


class Gan:
    """Adversarial training: the loss of the generator fills the gradients of both networks."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.d, self.g = net(8, 1), net(6, 4)
        self.opt_d, self.opt_g = self.adamw(self.d), self.adamw(self.g)
        self.read: list[Tensor] = []

    @staticmethod
    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.opt_d, self.opt_g]

    def d_loss(self, step: int) -> Tensor:
        fake = self.g(noise(1000 + step)).detach()
        return (self.d(noise(step, *BAD_D)) - 1).square().mean() + self.d(fake).square().mean()

    def g_loss(self, step: int) -> Tensor:
        return (self.d(self.g(noise(1000 + step, *(1000 + n for n in BAD_G)))) - 1).square().mean()

    def iteration(self, step: int) -> None:
        self.opt_d.zero_grad()
        loss = self.d_loss(step)
        loss.backward()
        self.opt_d.step()
        self.opt_g.zero_grad()
        other = self.g_loss(step)
        other.backward()
        self.opt_g.step()
        self.read += [loss, other]

    def run(self) -> None:
        for step in range(STEPS):
            self.iteration(step)


class Fed(Gan):
    """A loop over a loader."""

    def run(self) -> None:
        data = [noise(step) for step in range(STEPS)]
        for step, _ in enumerate(DataLoader(data, batch_size=None)):  # type: ignore[arg-type]
            self.iteration(step)


class Passes(Fed):
    """Two losses for the first one, sometimes three, and another line."""

    def iteration(self, step: int) -> None:
        self.opt_d.zero_grad()
        loss = (self.d(noise(step, *BAD_D)) - 1).square().mean()
        loss.backward()
        fake = self.d(self.g(noise(1000 + step)).detach()).square().mean()
        fake = fake + (torch.inf if step == 10 else 0.0)  # its gradients are finite
        fake.backward()
        if step in (28, 49):
            self.d(noise(2000 + step)).square().mean().backward()
        self.opt_d.step()
        self.opt_g.zero_grad()
        other = self.g_loss(step)
        if step in (39, 40, 42):
            other.backward()  # the last finite one is another one here
        else:
            other.backward()
        self.opt_g.step()
        self.read += [loss, fake, other]


class Shared(Fed):
    """One loss for both of them; later two."""

    def iteration(self, step: int) -> None:
        loss = self.d_loss(step) + self.g_loss(step)
        loss.backward()
        if step > 44:
            self.g_loss(step).backward()
        self.opt_d.step()
        if step == 30:
            self.opt_g.load_state_dict(self.opt_g.state_dict())
        self.opt_g.step()
        self.opt_d.zero_grad()
        self.opt_g.zero_grad()
        self.read.append(loss)


class Clipped(Gan):
    """Both are clipped, and whatever else can happen to one of them happens once."""

    def iteration(self, step: int) -> None:
        turns = [(self.opt_d, self.d, self.d_loss), (self.opt_g, self.g, self.g_loss)]
        for optimizer, model, make in turns[:: -1 if step in (37, 38) else 1]:
            optimizer.zero_grad()
            loss = make(step)
            loss.backward()
            self.read.append(loss)
            here = step, "d" if model is self.d else "g"
            if here != (43, "g"):
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            if here in ((10, "d"), (30, "g")):
                next(model.parameters()).grad = None
            if here == (50, "d"):
                optimizer.step()
            if here in ((13, "d"), (56, "g")):  # an error inside, which the script catches
                state = next(iter(optimizer.state.values()))
                kept = state.pop("exp_avg")
                with pytest.raises(KeyError):
                    optimizer.step()
                state["exp_avg"] = kept
            optimizer.step()


class Seldom(Gan):
    """The second one steps in every third iteration only, and later in each with ``retain_graph``.

    Then the first one is replaced.
    """

    def iteration(self, step: int) -> None:
        self.opt_d.zero_grad()
        loss = self.d_loss(step)
        loss.backward(retain_graph=40 < step < 50)
        self.opt_d.step()
        if step > 26 or step % 3 == 0:
            self.opt_g.zero_grad()
            self.g_loss(step).backward()
            self.opt_g.step()
        if step == 52:
            self.opt_d = self.adamw(self.d)


class Scaled(Gan):
    """One scaler for both, which stays outside of stretches."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=9)

    def iteration(self, step: int) -> None:
        for optimizer, make in ((self.opt_d, self.d_loss), (self.opt_g, self.g_loss)):
            optimizer.zero_grad()
            self.scaler.scale(make(step)).backward()
            self.scaler.step(optimizer)
        self.scaler.update()


Ended = tuple[MemoryRecorder, list[Tensor], list[float], Comparability]


def trained(make_engine: MakeEngine, kind: Callable[[], Gan]) -> Ended:
    engine, loop = make_engine(device_path=True, budget=1.0, explain=False), kind()
    loop.run()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    assert not any({"found_inf", "grad_scale"} & one.__dict__.keys() for one in loop.optimizers)
    engine.close()
    weights = [*loop.d.state_dict().values(), *loop.g.state_dict().values()]
    read, comparability = [loss.item() for loss in loop.read], engine.state.training.comparability
    return engine.memory, weights, read, comparability  # type: ignore[attr-defined]


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """The steps in stretches, with their optimizers."""
    host_kernels.install(monkeypatch)
    found: set[tuple[int, int]] = set()
    original = Stretch.step_ends

    def noted(self: Stretch, optimizer: object, step: int) -> bool:
        found.add((step, self.plan.guard.index))
        return original(self, optimizer, step)

    monkeypatch.setattr(Stretch, "step_ends", noted)
    return found


_slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (Passes, 24),
        (Shared, 24),
        (Clipped, 24),
        *(pytest.param(kind, own, marks=_slow) for kind, own in ((Gan, 24), (Seldom, 8))),
        pytest.param(Scaled, 0, marks=_slow),
    ],
)
def test_turns_in_a_stretch_change_nothing_but_when_rows_are_written(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    inside: set[tuple[int, int]],
    kind: Callable[[], Gan],
    own: int,
) -> None:
    short = trained(make_engine, kind)
    assert len(inside) > own if own else not inside
    monkeypatch.setattr(Stretches, "begin", lambda *_: None)
    long = trained(make_engine, kind)
    assert all(map(torch.equal, short[1], long[1]))
    assert short[2] == long[2] and np.isfinite(short[2]).all()
    assert short[0].batches == long[0].batches
    # The weights are looked at from the step on in which a bad one is known.
    rows, others = short[0].rows(), long[0].rows()
    for column in set(rows.dtype.names or ()) - _OTHER - {"param_bad", "param_layer"}:
        np.testing.assert_array_equal(rows[column], others[column], err_msg=column)
    told = [{(k, n) for k, n, _ in one.events if k != "snapshots"} for one in (short[0], long[0])]
    assert told[0] == told[1]
    known = [{name: getattr(one[3], name) for name in _KEPT} for one in (short, long)]
    assert known[0] == known[1]
    if kind in (Gan, Passes, Scaled):  # only the one whose loss it was
        for opt, bad in ((0, BAD_D), (1, BAD_G)):
            mine = rows[rows["opt"] == opt]
            assert mine["step"][mine["skipped"] > 0].tolist() == list(bad)
    if kind is Seldom:  # in none where they will not go on taking turns
        assert min(inside)[0] > 27
    if kind is Passes:
        assert {(BAD_D[0], 0), (BAD_D[0], 1), (BAD_G[0], 0), (BAD_G[0], 1)} <= inside
