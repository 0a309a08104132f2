# Day-ahead electricity load forecast with a small dilated TCN.
# 32 households, hourly readings for about two years, pinball loss on three quantiles.
import math

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(11)
np.random.seed(11)

HOUSES, HOURS = 32, 17520
LOOKBACK, HORIZON = 48, 24
BATCH = 32
STEPS = 170
QUANTILES = torch.tensor([0.1, 0.5, 0.9])

# ---------------------------------------------------------------- data
hour = np.arange(HOURS, dtype=np.float32)
daily = np.sin(2 * np.pi * hour / 24)
weekly = np.cos(2 * np.pi * hour / 168)
gain = np.random.uniform(0.6, 1.8, (HOUSES, 1)).astype(np.float32)
shift = np.random.uniform(-0.4, 0.4, (HOUSES, 1)).astype(np.float32)
load = gain * daily + 0.4 * weekly + shift
load += 0.15 * np.random.randn(HOUSES, HOURS).astype(np.float32)
load = ((load - load.mean(1, keepdims=True)) / load.std(1, keepdims=True)).astype(np.float32)

# last eight weeks are held out for the final check
split = HOURS - 8 * 168
series = load[:, :split]
starts_per_house = split - LOOKBACK - HORIZON
n_windows = HOUSES * starts_per_house

offsets = np.arange(LOOKBACK + HORIZON)


def windows(n_batches):
    """Yield random (history, future) pairs, no window twice within a batch."""
    for _ in range(n_batches):
        picks = np.random.choice(n_windows, BATCH, replace=False)
        house, start = np.divmod(picks, starts_per_house)
        block = series[house[:, None], start[:, None] + offsets]
        block = torch.from_numpy(block)
        yield block[:, :LOOKBACK], block[:, LOOKBACK:]


# ---------------------------------------------------------------- model
class DilatedBlock(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(ch, 2 * ch, 3, dilation=dilation)
        self.out = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        h = self.conv(nn.functional.pad(x, (self.pad, 0)))
        a, b = h.chunk(2, dim=1)
        return x + self.out(torch.tanh(a) * torch.sigmoid(b))


tcn = nn.Sequential(
    nn.Conv1d(1, 16, 1),
    *[DilatedBlock(16, 2 ** i) for i in range(4)],
)
readout = nn.Linear(16, HORIZON * len(QUANTILES))


def forecast(history):
    h = tcn(history.unsqueeze(1))[:, :, -1]
    return readout(torch.relu(h)).view(-1, HORIZON, len(QUANTILES))


def pinball(pred, target):
    err = target.unsqueeze(-1) - pred
    return torch.maximum(QUANTILES * err, (QUANTILES - 1) * err).mean()


# ---------------------------------------------------------------- training
params = list(tcn.parameters()) + list(readout.parameters())
opt = torch.optim.Adam(params, lr=6e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / STEPS))
)

smooth = None
for step, (history, future) in enumerate(windows(STEPS)):
    loss = pinball(forecast(history), future)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    schedule.step()
    if step % 20 == 0:
        value = loss.item()
        smooth = value if smooth is None else 0.7 * smooth + 0.3 * value
        print(f"step {step:4d}  pinball {smooth:.4f}")

with torch.no_grad():
    held = torch.from_numpy(load[:, split:split + LOOKBACK + HORIZON])
    score = pinball(forecast(held[:, :LOOKBACK]), held[:, LOOKBACK:])
print(f"held-out pinball {score.item():.4f}")
