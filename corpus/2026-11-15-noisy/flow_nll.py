"""RealNVP on a thin four-dimensional spiral: the negative log-likelihood goes below zero."""

import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(4)

DIM = 4


def spiral(n):
    t = torch.rand(n).sqrt() * 2 * math.pi
    base = torch.stack([t * t.cos(), t * t.sin(), 4 * t.sin(), 2 * t - 6], dim=1) / 4
    return base + 0.03 * torch.randn(n, DIM)


class Coupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(
            nn.Linear(DIM, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2 * DIM)
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        s, t = self.net(x * self.mask).chunk(2, dim=1)
        s = 2 * torch.tanh(s) * (1 - self.mask)
        t = t * (1 - self.mask)
        return x * s.exp() + t, s.sum(dim=1)


class Flow(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        masks = [torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])]
        masks += [1 - m for m in masks]
        self.layers = nn.ModuleList(Coupling(masks[i % 4]) for i in range(layers))

    def nll(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        logp = -0.5 * (x**2).sum(dim=1) - 0.5 * DIM * math.log(2 * math.pi)
        return -(logp + logdet).mean()


flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.997)

for step in range(700):
    loss = flow.nll(spiral(100))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 75 == 0:
        print(f"step {step} nll {loss.item():.3f}")

with torch.no_grad():
    print("final", flow.nll(spiral(2000)).item())
