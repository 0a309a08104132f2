"""Warmup, plateau, decay: a hand-made schedule with a hole between two of its phases.

Three steps fall between the phases and get the bare multiplier of the fall-through branch.
"""

import os

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(14)
TOTAL = 600


def multiplier(step):
    if step < 50:
        return (step + 1) / 50
    if step < 260:
        return 1.0
    if step > 262 or os.environ.get("CLEAN") == "1":
        return max(0.05, (TOTAL - step) / (TOTAL - 260))
    return step  # never meant to be reached


def data(n):
    x = torch.randn(n, 10)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs(), torch.tanh(x[:, 3:6].sum(1))], dim=1)
    return x, y


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = LambdaLR(optimizer, multiplier)
loader = DataLoader(TensorDataset(*data(6400)), batch_size=32, shuffle=True, drop_last=True)
criterion = nn.SmoothL1Loss()

step = 0
while step < TOTAL:
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(f"step {step} lr {optimizer.param_groups[0]['lr']:.4f} loss {loss.item():.5f}")
        step += 1
        if step == TOTAL:
            break

x, y = data(2000)
with torch.no_grad():
    print("final", criterion(model(x), y).item())
