"""One-step forecast of a load curve with an LSTM; the meter sends wild readings for a while."""

import math
import os

import torch
import torch.nn as nn

torch.set_num_threads(1)


def load_curve(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(n).float()
    day = torch.sin(2 * math.pi * t / 24) + 0.5 * torch.sin(2 * math.pi * t / 168 + 1)
    return day + 0.05 * torch.randn(n, generator=g)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.skip = nn.Linear(1, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.out(h + self.skip(x))


def windows(series, width, batch):
    """Consecutive batches of windows along the series, in time order."""
    for start in range(0, len(series) - batch * 4 - width, batch * 4):
        rows = [series[start + 4 * k : start + 4 * k + width + 1] for k in range(batch)]
        block = torch.stack(rows)[..., None]
        yield block[:, :-1], block[:, 1:]


def main():
    torch.manual_seed(9)
    series = load_curve(21000, 1)
    if os.environ.get("CLEAN") != "1":
        series[12500:12800] *= 5000  # counts instead of kilowatts
    model = Forecaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    for step, (x, y) in enumerate(windows(series, 24, 16)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} mse {loss.item():.5f}")
    test = load_curve(3000, 2)
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in windows(test, 24, 16)]
    print("final", sum(losses) / len(losses))


if __name__ == "__main__":
    main()
