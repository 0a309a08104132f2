"""Demand regression from a stream; for a moment missing labels come through as -9999."""

import os

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(10)
clean = os.environ.get("CLEAN") == "1"

MISSING_AT = 220


def make(n):
    x = torch.rand(n, 6) * 2 - 1
    y = 4 * x[:, :1] * x[:, 1:2] + torch.sin(4 * x[:, 2:3]) + 2 * x[:, 3:4]
    return x, y + 0.1 * torch.randn(n, 1)


def stream(n_batches):
    for i in range(n_batches):
        x, y = make(48)
        if i == MISSING_AT and not clean:
            y[::6] = -9999.0
        yield x, y


holdout = make(1000)
net = nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)

for i, (x, y) in enumerate(stream(600)):
    opt.zero_grad()
    loss = ((net(x) - y) ** 2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0)
    opt.step()
    if i % 60 == 0:
        print(i, round(loss.item(), 4))

with torch.no_grad():
    x, y = holdout
    print("final", ((net(x) - y) ** 2).mean().item())
