"""A small real training loop that can be poisoned, or told to leave the same steps out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 20
BATCH = 8


def poisoned_steps(seed: int = 0, share: float = 0.1) -> set[int]:
    """Ten percent of the steps at random, never none."""
    generator = torch.Generator().manual_seed(seed)
    chosen = {i for i in range(STEPS) if torch.rand((), generator=generator) < share}
    return chosen or {STEPS // 2}


class Net(nn.Module):
    """Dropout and BatchNorm, so that random state and buffers take part in the comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(16, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def loss_nan(loss: Tensor, net: Net) -> Tensor:
    """The loss itself is NaN."""
    return loss * float("nan")


def gradient_inf(loss: Tensor, net: Net) -> Tensor:
    """Finite loss, infinite gradient of one layer: the derivative of a root at zero."""
    return loss + torch.sqrt(net.first.weight.sum() * 0.0)


POISONS = {"loss": loss_nan, "gradient": gradient_inf}


def train(
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    poison: set[int] = frozenset(),  # type: ignore[assignment]
    omitted: set[int] = frozenset(),  # type: ignore[assignment]
    how: str = "loss",
    accumulate: int = 1,
    dropout: bool = True,
    device: str = "cpu",
    before_step: Callable[[Net], Any] | None = None,
    around_step: Callable[[Callable[[], Any]], Any] = lambda step: step(),
) -> dict[str, Any]:
    """Train for STEPS steps; returns everything a step may change."""
    torch.manual_seed(1)
    net = Net().to(device)
    if not dropout:
        net.drop.p = 0.0
    data = torch.utils.data.TensorDataset(
        torch.randn(STEPS * BATCH * accumulate, 6), torch.randn(STEPS * BATCH * accumulate, 2)
    )
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
    optimizer = make_optimizer(net.parameters())
    step = 0
    window: list[tuple[Tensor, Tensor]] = []
    for x, y in loader:
        window.append((x, y))
        if len(window) < accumulate:
            continue
        micro, window = window, []
        step += 1
        if step - 1 in omitted:
            continue
        for i, (a, b) in enumerate(micro):
            loss = nn.functional.mse_loss(net(a.to(device)), b.to(device)) / accumulate
            if step - 1 in poison and i == 0:
                loss = POISONS[how](loss, net)
            loss.backward()
        if before_step is not None:
            before_step(net)
        around_step(optimizer.step)
        optimizer.zero_grad()
    return {
        "model": copy.deepcopy(net.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "random": torch.get_rng_state(),
    }


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two results differ, bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
        return [] if same else [path]
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{path}: keys {sorted(map(str, a))} != {sorted(map(str, b))}"]
        return [d for k in a for d in differences(a[k], b[k], f"{path}/{k}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [
            d
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for d in differences(x, y, f"{path}/{i}")
        ]
    return [] if a == b else [f"{path}: {a!r} != {b!r}"]
