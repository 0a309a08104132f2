"""DeepONet for the 1-d wave equation: initial shape -> displacement at (x, t)."""
import csv
import math
import os
import tempfile

import torch
from torch import nn


class DeepONet(nn.Module):
    def __init__(self, sensors=40, width=64, rank=32):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, rank))
        self.trunk = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, rank))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, shape, coords):
        return self.branch(shape) @ self.trunk(coords).t() + self.bias


class RunLog:
    """Keeps the run's table on disk so that it can be opened at any time."""

    def __init__(self, path):
        self.path = path
        self.rows = []

    def add(self, **values):
        self.rows.append(values)
        with open(self.path, "w", newline="") as f:
            writer = csv.DictWriter(f, fieldnames=list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)

    def last(self, key, n):
        recent = [r[key] for r in self.rows[-n:]]
        return sum(recent) / len(recent)


def wave_problem(batch, sensors, coords, modes=5):
    k = torch.arange(1, modes + 1, dtype=torch.float32)
    coef = torch.randn(batch, modes) / k
    xs = torch.linspace(0, 1, sensors)
    shape = coef @ torch.sin(math.pi * k[:, None] * xs)
    x, t = coords[:, 0], coords[:, 1]
    basis = torch.sin(math.pi * k[:, None] * x) * torch.cos(math.pi * k[:, None] * t)
    return shape, coef @ basis


def main():
    torch.set_num_threads(1)
    torch.manual_seed(42)
    model = DeepONet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.997)

    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(os.path.join(folder, "history.csv"))
        for step in range(660):
            coords = torch.rand(80, 2)
            shape, target = wave_problem(24, 40, coords)
            pred = model(shape, coords)
            residual = pred - target
            loss = residual.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()

            summary = torch.stack([loss, norm, residual.abs().max(), residual.mean(), residual.std()]).tolist()
            log.add(
                step=step, lr=scheduler.get_last_lr()[0], loss=summary[0], grad_norm=summary[1],
                worst=summary[2], bias=summary[3], spread=summary[4], rmse=math.sqrt(summary[0]),
            )
            if (step + 1) % 100 == 0:
                print(f"step {step + 1}  loss {log.last('loss', 50):.5f}  rmse {log.last('rmse', 50):.4f}")
        print("table size", os.path.getsize(log.path), "bytes")


if __name__ == "__main__":
    main()
