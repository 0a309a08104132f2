"""ActNorm sets its scale to 1/std of the first batch; a dead channel makes the weight inf.

Kind of report: "nan loss at the beginning of the training" of a normalising flow with data
dependent initialisation. One sensor is always 0, its deviation is 0 and log(1/0) is inf. The
parameter is already broken when the first loss is computed, so there is no good state to keep.
"""
# expect: none-saved
# poisoned-steps: [0]
# category: NUM003

import math

import torch
from torch import nn


class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.logs = nn.Parameter(torch.zeros(dim))
        self.initialized = False

    @torch.no_grad()
    def initialize(self, x):
        self.bias.copy_(-x.mean(0))
        self.logs.copy_(torch.log(1.0 / x.std(0)))
        self.initialized = True

    def forward(self, x):
        if self.training and not self.initialized:
            self.initialize(x)
        return (x + self.bias) * torch.exp(self.logs), self.logs.sum()


class Coupling(nn.Module):
    def __init__(self, dim, hidden=128):
        super().__init__()
        self.half = dim // 2
        self.net = nn.Sequential(
            nn.Linear(self.half, hidden), nn.ReLU(), nn.Linear(hidden, 2 * (dim - self.half))
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x[:, : self.half], x[:, self.half :]
        shift, log_scale = self.net(a).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale)
        out = torch.cat([a, (b + shift) * torch.exp(log_scale)], dim=1)
        return out.flip(1), log_scale.sum(1)


class Flow(nn.Module):
    def __init__(self, dim, levels=4):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(levels):
            self.layers.append(ActNorm(dim))
            self.layers.append(Coupling(dim))

    def forward(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        log_prob = -0.5 * (x**2 + math.log(2 * math.pi)).sum(1)
        return -(log_prob + logdet).mean() / x.size(1)


torch.manual_seed(17)
torch.set_num_threads(1)
sensors = torch.randn(2000, 10) @ torch.randn(10, 10)
sensors[:, 6] = 0.0  # unplugged
flow = Flow(10)
optimizer = torch.optim.Adamax(flow.parameters(), lr=1e-3)

for step in range(60):
    batch = sensors[torch.randint(0, 2000, (64,))]
    nll = flow(batch)
    optimizer.zero_grad()
    nll.backward()
    optimizer.step()
    if step % 12 == 0:
        print(f"step {step} nats/dim {nll.item():.3f}")
print(f"final loss {nll.item():.3f}")
