import logging
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(31)

RUN_DIR = tempfile.mkdtemp(prefix="river_")
HISTORY, AHEAD, GAUGES = 30, 6, 12


def get_logger(name):
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(os.path.join(RUN_DIR, f"{name}.log"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


def gauge_series(length=6000):
    t = torch.arange(length, dtype=torch.float32)
    seasons = [torch.sin(2 * math.pi * t / p) for p in (24.0, 168.0, 700.0)]
    rain = (torch.rand(length) < 0.02).float() * torch.rand(length) * 3
    runoff = torch.zeros(length)
    for i in range(1, length):
        runoff[i] = 0.93 * runoff[i - 1] + rain[i]
    lags = [torch.roll(runoff, g * 2) for g in range(GAUGES)]
    series = torch.stack([sum(seasons) * 0.3 + lag for lag in lags], dim=1)
    return (series - series.mean(0)) / series.std(0)


class StageForecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.gru = nn.GRU(GAUGES, hidden, batch_first=True)
        self.head = nn.Linear(hidden, AHEAD * GAUGES)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1]).view(-1, AHEAD, GAUGES)


def sample_batch(series, size=16):
    starts = torch.randint(0, len(series) - HISTORY - AHEAD, (size,))
    windows = torch.stack([series[s : s + HISTORY + AHEAD] for s in starts.tolist()])
    return windows[:, :HISTORY], windows[:, HISTORY:]


def train_step(step, model, optimizer, series):
    log = get_logger("train")
    past, future = sample_batch(series)
    pred = model(past)
    loss = F.smooth_l1_loss(pred, future)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        per_gauge = (pred - future).abs().mean((0, 1)).tolist()
    log.info("step %d loss %.5f grad_norm %.4f", step, loss.item(), norm.item())
    for gauge, mae in enumerate(per_gauge):
        log.info("step %d gauge %d mae %.4f", step, gauge, mae)
    return loss.item()


def main():
    series = gauge_series()
    model = StageForecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses = []
    for step in range(280):
        losses.append(train_step(step, model, optimizer, series))
        if (step + 1) % 40 == 0:
            print(f"step {step + 1}: mean loss {sum(losses[-40:]) / 40:.4f}")


if __name__ == "__main__":
    main()
