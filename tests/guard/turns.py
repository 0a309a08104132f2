"""Loops in which two optimizers take turns, as people write them, with bad batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from holdfast.guard.engine import Engine
from holdfast.probes.comparable import _KEPT
from holdfast.records.columns import TIMES

from .conftest import MemoryRecorder

STEPS = 62
BAD_D, BAD_G = (22, 59), (14, 42)


def noise(step: int, *bad: int) -> Tensor:
    """The same for each step; the outlier and those that are bad are far from the others."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    if step in bad:
        x[3] = torch.nan
    return x * (300.0 if step == 61 else 1.0)


class Gan:
    """Adversarial training: the loss of the generator fills the gradients of both networks."""

    def __init__(self, device: str = "cpu") -> None:
        torch.manual_seed(3)
        self.device = device
        self.d, self.g = self.net(8, 1).to(device), self.net(6, 4).to(device)
        self.opt_d, self.opt_g = self.adamw(self.d), self.adamw(self.g)
        self.read: list[Tensor] = []

    def net(self, width: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, out))

    @staticmethod
    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.opt_d, self.opt_g]

    def noise(self, step: int, *bad: int) -> Tensor:
        return noise(step, *bad).to(self.device)

    def d_loss(self, step: int) -> Tensor:
        fake = self.g(self.noise(1000 + step)).detach()
        return (self.d(self.noise(step, *BAD_D)) - 1).square().mean() + self.d(fake).square().mean()

    def g_loss(self, step: int) -> Tensor:
        made = self.g(self.noise(1000 + step, *(1000 + n for n in BAD_G)))
        return (self.d(made) - 1).square().mean()

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


class Normed(Gan):
    """Both have running means, and those of the first one move in the pass of the other, too."""

    def net(self, width: int, out: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), super().net(width, out))


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
        loss = (self.d(self.noise(step, *BAD_D)) - 1).square().mean()
        loss.backward()
        fake = self.d(self.g(self.noise(1000 + step)).detach()).square().mean()
        fake = fake + (torch.inf if step == 10 else 0.0)  # its gradients are finite
        fake.backward()
        if step in (28, 49):
            self.d(self.noise(2000 + step)).square().mean().backward()
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
    """One scaler for both, which stays outside of bursts."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=9)

    def iteration(self, step: int) -> None:
        for optimizer, make in ((self.opt_d, self.d_loss), (self.opt_g, self.g_loss)):
            optimizer.zero_grad()
            self.scaler.scale(make(step)).backward()
            self.scaler.step(optimizer)
        self.scaler.update()


class Ended:
    """What is left of a training."""

    def __init__(self, engine: Engine, loop: Gan) -> None:
        loop.run()
        self.memory: MemoryRecorder = engine.memory  # type: ignore[attr-defined]
        assert not engine.off, self.memory.of_kind("holdfast_error")
        assert not any({"found_inf", "grad_scale"} & one.__dict__.keys() for one in loop.optimizers)
        engine.close()
        self.rows = self.memory.rows()
        self.weights = [*loop.d.state_dict().values(), *loop.g.state_dict().values()]
        self.read = [loss.item() for loss in loop.read]
        comparability = engine.state.training.comparability
        self.known = {name: getattr(comparability, name) for name in _KEPT}

    def skipped(self, opt: int) -> list[int]:
        """The steps of an optimizer that were skipped."""
        rows = self.rows[self.rows["opt"] == opt]
        return rows["step"][rows["skipped"] > 0].tolist()

    def is_like(self, other: Ended, precision: float = 0.0) -> None:
        """The same weights, losses, findings and rows, but for clocks and memory."""
        assert all(map(torch.equal, self.weights, other.weights))
        assert self.read == other.read and np.isfinite(self.read).all()
        assert self.memory.batches == other.memory.batches
        reported = [
            {(kind, step) for kind, step, _ in one.memory.events if kind != "snapshots"}
            for one in (self, other)
        ]
        assert reported[0] == reported[1] and self.known == other.known
        but = {*TIMES, "time", "guard", "guard_device", "guard_hidden", "rss", "losses"}
        # The weights are looked at from the step on in which a bad one is known.
        but |= {"mem_allocated", "mem_reserved", "param_bad", "param_layer"}
        for column in set(self.rows.dtype.names or ()) - but:
            own, theirs = self.rows[column], other.rows[column]
            np.testing.assert_allclose(own, theirs, precision, err_msg=column)
