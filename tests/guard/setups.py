"""Forty ways to train, as scripts have them: what each is made of, and one loop for most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler, swa_utils

from . import foreign

STEPS = 9
BAD = (2, 5, 6)
"""A loss that is NaN, an infinite gradient below a finite loss, an input of NaN."""


@dataclass
class Training:
    """What a loop needs; what is not given it does without."""

    net: nn.Module
    optimizers: Sequence[Any]
    goes_on: Sequence[Callable[[], Any]] = ()
    """What the script itself does after each step, whatever became of it."""
    clip: Callable[[Any], Any] | None = None
    accumulate: int = 1
    scaler: Any = None
    closure: bool = False
    loss_of: Callable[[nn.Module, Tensor], Tensor] = lambda net, x: net(x).square().mean()
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further state to compare."""


Make = Callable[[], Training]


class Net(nn.Module):
    """With running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def run(make: Make, *, poison: bool) -> dict[str, Any]:
    """Train; without ``poison`` the bad batches are never seen."""
    torch.manual_seed(0)
    training = make()
    net, scaler = training.net, training.scaler
    for step in range(STEPS):
        if step not in BAD or poison:
            _iterate(training, step)
        for each in training.goes_on:
            each()
    return {
        "net": net.state_dict(),
        "optimizers": [one.state_dict() for one in training.optimizers],
        "own": [foreign.own_state(one) for one in training.optimizers],
        "more": {k: v() if callable(v) else v for k, v in training.more.items()},
        "scaler": None if scaler is None else scaler.state_dict(),
    }


def _iterate(training: Training, step: int) -> None:
    net, scaler = training.net, training.scaler

    def passes() -> Tensor:
        total = torch.zeros(())
        for part in range(training.accumulate):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + part))
            total = total + _backward(training, x, step if part == 0 else -1).detach()
        return total

    if training.closure:

        def closure() -> Tensor:
            net.zero_grad()
            return passes()

        for optimizer in training.optimizers:
            optimizer.step(closure)
        return
    passes()
    for optimizer in training.optimizers:
        if training.clip is not None:
            training.clip(net.parameters())
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
    if scaler is not None:
        scaler.update()
    net.zero_grad()


def _backward(training: Training, x: Tensor, step: int) -> Tensor:
    if step == BAD[2]:
        x = x * torch.nan
    loss = training.loss_of(training.net, x) / training.accumulate
    if step == BAD[0]:
        loss = loss * torch.nan
    elif step == BAD[1]:
        loss = loss + sum(
            torch.sqrt(p.sum() * 0.0) for p in training.net.parameters() if p.requires_grad
        )
    (loss if training.scaler is None else training.scaler.scale(loss)).backward()
    return loss


def plain(kind: Any, **options: Any) -> Make:
    """One optimizer for the whole network."""

    def make() -> Training:
        net = Net()
        return Training(net, [kind(net.parameters(), **options)])

    return make


def around(base: Any, wrapper: Any) -> Make:
    """An optimizer in another."""

    def make() -> Training:
        net = Net()
        return Training(net, [wrapper(base(net.parameters(), lr=0.05))])

    return make


def with_loop(optimizer: Any = optim.AdamW, **loop: Any) -> Make:
    """Something else in the loop."""

    def make() -> Training:
        net = Net()
        return Training(net, [optimizer(net.parameters(), lr=0.05)], **loop)

    return make


def scheduled(schedule: Callable[[Any], Any], optimizer: Any = optim.SGD) -> Make:
    """A schedule that the script steps after each step."""

    def make() -> Training:
        net = Net()
        one = optimizer(net.parameters(), lr=0.05)
        plan = schedule(one)
        more = {"rate": plan.get_last_lr, "epoch": lambda: plan.last_epoch}
        return Training(net, [one], [plan.step], more=more)

    return make


def on_plateau() -> Training:
    net = Net()
    one = optim.Adam(net.parameters(), lr=0.05)
    plan = lr_scheduler.ReduceLROnPlateau(one, patience=0, threshold=0.5)
    return Training(net, [one], [lambda: plan.step(1.0)], more={"bad": lambda: plan.num_bad_epochs})


def averaged() -> Training:
    net = Net()
    average = swa_utils.AveragedModel(net, use_buffers=True)
    steps = [lambda: average.update_parameters(net)]
    more = {"average": average.state_dict}
    return Training(net, [optim.SGD(net.parameters(), lr=0.05)], steps, more=more)


def ema_by_hand() -> Training:
    net, mean = Net(), Net()

    def update() -> None:
        with torch.no_grad():
            for m, p in zip(mean.parameters(), net.parameters(), strict=True):
                m.lerp_(p, 0.1)

    more = {"mean": mean.state_dict}
    return Training(net, [optim.Adam(net.parameters())], [update], more=more)


def scaled(optimizer: Any) -> Make:
    def make() -> Training:
        net = Net()
        # Overflow is the scaler's: it skips and lowers its scale by itself.
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, backoff_factor=1.0 - 1e-9)
        return Training(net, [optimizer(net.parameters(), lr=0.05)], scaler=scaler)

    return make


def two_optimizers() -> Training:
    net = Net()
    body = [*net.first.parameters(), *net.norm.parameters()]
    return Training(net, [optim.SGD(body, lr=0.05), foreign.Counting(net.last.parameters())])


def groups() -> Training:
    net = Net()
    given = [
        {"params": net.first.parameters(), "lr": 0.1},
        {"params": net.norm.parameters(), "weight_decay": 0.0},
        {"params": net.last.parameters(), "betas": (0.5, 0.9)},
    ]
    return Training(net, [optim.AdamW(given, lr=0.01)])


def frozen() -> Training:
    net = Net()
    net.last.requires_grad_(False)
    trained = [p for p in net.parameters() if p.requires_grad]
    return Training(net, [optim.NAdam(trained)])


def sparse() -> Training:
    table = nn.Embedding(20, 4, sparse=True)

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        rows = net((x.nan_to_num().abs() * 5).long().clamp(max=19))
        return (rows * x.unsqueeze(-1)).square().mean()

    return Training(table, [optim.SparseAdam(table.parameters(), lr=0.1)], loss_of=loss_of)


def tied() -> Training:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    return Training(net, [optim.RMSprop(net.parameters(), lr=0.01, centered=True, momentum=0.9)])


def double() -> Training:
    net = Net().double()
    loss_of: Any = lambda net, x: net(x.double()).square().mean()  # noqa: E731
    return Training(net, [optim.Adadelta(net.parameters())], loss_of=loss_of)


def spectral() -> Training:
    """Its power iteration moves a buffer in every forward pass."""
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 1))
    return Training(net, [optim.Adamax(net.parameters())])


SETUPS: dict[str, Make] = {
    "SGD": plain(optim.SGD, lr=0.05),
    "momentum": plain(optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": plain(optim.Adam, lr=0.05),
    "Adam with amsgrad": plain(optim.Adam, lr=0.05, amsgrad=True),
    "AdamW fused": plain(optim.AdamW, lr=0.05, fused=True),
    "RMSprop": plain(optim.RMSprop, lr=0.01),
    "Adagrad": plain(optim.Adagrad, lr=0.05),
    "NAdam": plain(optim.NAdam, lr=0.05),
    "RAdam": plain(optim.RAdam, lr=0.05),
    "Rprop": plain(optim.Rprop, lr=0.05),
    "ASGD": plain(optim.ASGD, lr=0.05, t0=2),
    "Adafactor": plain(optim.Adafactor, lr=0.05),
    "clamp and nan_to_num": plain(foreign.Clamped),
    "SGLD": plain(foreign.Langevin),
    "a count and moments of its own": plain(foreign.Counting),
    "a check that raises": plain(foreign.Strict),
    "a step around Adam's": plain(foreign.CountingAdam, lr=0.05),
    "Lookahead": around(optim.Adam, foreign.Lookahead),
    "Lookahead around one's own": around(foreign.Counting, foreign.Lookahead),
    "Lookahead with hooks": around(optim.SGD, foreign.HookedLookahead),
    "a wrapper that averages": around(optim.RMSprop, foreign.Averaging),
    "own, with closure": with_loop(foreign.Counting, closure=True),
    "a step around Adam's, with closure": with_loop(foreign.CountingAdam, closure=True),
    "Adam with closure": with_loop(optim.Adam, closure=True),
    "clipping by norm": with_loop(clip=lambda p: nn.utils.clip_grad_norm_(p, 0.1)),
    "clipping by value": with_loop(clip=lambda p: nn.utils.clip_grad_value_(p, 0.1)),
    "clipping, own optimizer": with_loop(
        foreign.Counting, clip=lambda p: nn.utils.clip_grad_norm_(p, 0.1)
    ),
    "accumulation": with_loop(accumulate=3),
    "accumulation, own optimizer": with_loop(foreign.Clamped, accumulate=2),
    "GradScaler": scaled(optim.AdamW),
    "GradScaler, own optimizer": scaled(foreign.Counting),
    "StepLR": scheduled(lambda one: lr_scheduler.StepLR(one, 2)),
    "LambdaLR, own optimizer": scheduled(
        lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)), foreign.Counting
    ),
    "ReduceLROnPlateau": on_plateau,
    "SWA": averaged,
    "EMA by hand": ema_by_hand,
    "two optimizers": two_optimizers,
    "parameter groups": groups,
    "frozen layers": frozen,
    "sparse gradients": sparse,
    "tied weights": tied,
    "double precision": double,
    "spectral norm": spectral,
}
