"""Backpropagation through ten steps of a state that is then cut."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


cell = nn.GRUCell(16, 32)
head = nn.Linear(32, 1)
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()], 1e-3)
h = torch.zeros(8, 32)
loss = 0
for i in range(400):
    h = cell(torch.randn(8, 16), h)
    loss = loss + head(h).pow(2).mean()
    if (i + 1) % 10 == 0:
        opt.zero_grad()
        loss.backward()
        opt.step()
        h = h.detach()
        loss = 0
