"""An ordinary training script that dies of NaN: sensor readings with a few dead channels.

    python examples/dies_of_nan.py          # the loss turns to NaN and never comes back
    holdfast run examples/dies_of_nan.py    # a few steps are left out, and it learns

A small network learns the energy of an event from 64 sensor readings. Some events of the data
set are broken: their readings are all zero, and the script divides by their sum.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_events(count: int, broken: int) -> TensorDataset:
    """StepAverages that sum to the energy, smeared over the sensors; some events are empty."""
    energy = torch.rand(count, 1) * 9 + 1
    pattern = torch.rand(count, 64) + 0.1
    readings = energy * pattern / pattern.sum(1, keepdim=True)
    readings = readings * (1 + 0.01 * torch.randn_like(readings))
    readings[torch.randperm(count)[:broken]] = 0.0
    return TensorDataset(readings, energy)


class Regressor(nn.Module):
    """Looks at the shape of an event and at its total."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(65)
        self.body = nn.Sequential(nn.Linear(65, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.head = nn.Linear(64, 1)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        total = readings.sum(1, keepdim=True)
        shape = readings / total
        return self.head(self.body(self.norm(torch.cat([shape, total], 1))))


def main() -> None:
    """Train for a few epochs and print the loss of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--events", type=int, default=16384)
    parser.add_argument("--broken", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    train = DataLoader(make_events(args.events, args.broken), batch_size=128, shuffle=True)
    check = make_events(2048, broken=0).tensors
    model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    held_out = torch.tensor(float("nan"))
    for epoch in range(args.epochs):
        model.train()
        for readings, energy in train:
            loss = nn.functional.mse_loss(model(readings), energy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            held_out = nn.functional.mse_loss(model(check[0]), check[1])
        print(f"epoch {epoch}  held-out loss {held_out.item():.4f}", flush=True)
    print(f"final loss {held_out.item():.4f}")


if __name__ == "__main__":
    main()
