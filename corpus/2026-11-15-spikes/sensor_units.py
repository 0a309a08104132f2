"""Predict pump power from sensor readings; one shard of the log was exported in millimetres.

The rows are kept in time order, so the shard is met as a run of consecutive batches.
"""

import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)

CLEAN = os.environ.get("CLEAN") == "1"
ROWS, BATCH = 16000, 32
BAD_ROWS = slice(140 * BATCH, 144 * BATCH)


def readings(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.3 * x[:, 3] ** 2 - x[:, 4].clamp(min=0)
    return x, (y + 0.05 * torch.randn(n, generator=g))[:, None]


class PumpLog(Dataset):
    def __init__(self):
        self.x, self.y = readings(ROWS, 1)
        if not CLEAN:
            self.x[BAD_ROWS] *= 1000

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return self.x[i], self.y[i]


model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.MSELoss()

for step, (x, y) in enumerate(DataLoader(PumpLog(), batch_size=BATCH, shuffle=False)):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

x, y = readings(1000, 2)
with torch.no_grad():
    print("final", loss_fn(model(x), y).item())
