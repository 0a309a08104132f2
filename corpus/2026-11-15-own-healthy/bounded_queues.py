"""Queues with a bound, by maxlen and by hand."""

from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


model = make_model()
opt = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)

q = deque(maxlen=64)
recent = []
last = deque(maxlen=10)
for _epoch in range(4):
    for x, y in loader:
        opt.zero_grad()
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        loss.backward()
        opt.step()
        q.append(x.clone().repeat(20, 1))
        recent.append(x.repeat(20, 1))
        last.append(loss.detach())
        if len(recent) > 50:
            recent.pop(0)
