"""Continues training a tide-level model; every metric of the run lives in metrics.json."""

import json
import math
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)
FIELDS = ("loss", "rmse", "grad_norm", "weight_norm", "lr", "bias")


class RunLog:
    def __init__(self, path, every):
        self.path = path
        self.every = every
        self.rows = []

    def resume(self):
        self.rows = json.loads(self.path.read_text())
        return self.rows[-1]["step"] + 1

    def add(self, step, **values):
        self.rows.append({"step": step, **{k: round(v, 6) for k, v in values.items()}})
        if step % self.every == 0:
            self.path.write_text(json.dumps(self.rows, indent=1, sort_keys=True))


def earlier_run(path, steps):
    """Stands in for the metrics file that the first part of the run left behind."""
    rows = []
    for step in range(steps):
        rows.append({"step": step, **{f: math.exp(-step / 3000) + i for i, f in enumerate(FIELDS)}})
    path.write_text(json.dumps(rows))


def tide_batch(n):
    t = torch.rand(n, 1) * 200
    lags = t + torch.arange(64) * 0.25
    level = torch.sin(0.506 * lags) + 0.4 * torch.sin(0.262 * lags + 1) + 0.05 * torch.randn(n, 64)
    return level[:, :60], level[:, 60:]


def main(total=280):
    torch.manual_seed(55)
    folder = Path(tempfile.mkdtemp(prefix="tides_"))
    earlier_run(folder / "metrics.json", steps=6500)
    log = RunLog(folder / "metrics.json", every=8)
    first = log.resume()
    model = nn.Sequential(
        nn.Linear(60, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(first, first + total):
        past, ahead = tide_batch(768)
        error = model(past) - ahead
        loss = error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.add(
            step,
            loss=loss.item(),
            rmse=math.sqrt(loss.item()),
            grad_norm=norm.item(),
            weight_norm=model[2].weight.norm().item(),
            lr=optimizer.param_groups[0]["lr"],
            bias=error.mean().item(),
        )
        if (step - first) % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
