"""A finite loss, and NaN in AddmmBackward0: rows that the loss leaves out, too late.

    python examples/nan_in_addmm.py          # all weights are NaN after a few steps
    holdfast run examples/nan_in_addmm.py    # bad steps are left out, line and fix are named

A small network forecasts a sensor network in which one reading in a hundred is missing. The script
knows and leaves those rows out of the loss. See docs/guides/nan_in_addmmbackward0.md.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_readings(count: int = 2048) -> TensorDataset:
    """StepAverages, what they lead to, and which rows are complete."""
    generator = torch.Generator().manual_seed(4)
    readings = torch.randn(count, 24, generator=generator)
    target = readings[:, :4].sum(1, keepdim=True).tanh()
    outages = torch.rand(count, generator=generator) < 0.01
    readings[outages, 7] = float("nan")
    return TensorDataset(readings, target, ~outages)


def main() -> None:
    """Train for three epochs."""
    torch.manual_seed(0)
    loader = DataLoader(make_readings(), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(24, 128), nn.GELU(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for epoch in range(3):
        for readings, target, valid in loader:
            forecast = model(readings)
            loss = nn.functional.mse_loss(forecast[valid], target[valid])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
