"""Momentum-contrast pretraining on vibration sensor windows."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class KeyQueue:
    def __init__(self, dim, size):
        self.size = size
        self.keys = F.normalize(torch.randn(size, dim), dim=1)

    def push(self, keys):
        self.keys = torch.cat([self.keys, keys], dim=0)

    def negatives(self):
        return self.keys[-self.size :]


class VibrationEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, dim)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def machine_windows(n, machines, gen):
    t = torch.arange(128.0)
    ident = torch.randint(0, machines, (n,), generator=gen)
    base = 0.05 + 0.02 * ident.float().unsqueeze(1)
    phase = torch.rand(n, 1, generator=gen) * 6.28
    return torch.sin(base * t + phase) + 0.5 * torch.sin(3.1 * base * t + phase)


def jitter(x, gen):
    gain = torch.rand(len(x), 1, generator=gen) * 0.6 + 0.7
    shift = int(torch.randint(-12, 13, (1,), generator=gen))
    return gain * x.roll(shift, dims=1) + 0.2 * torch.randn(x.shape, generator=gen)


class MoCoTrainer:
    def __init__(self, dim=256, queue=1536, momentum=0.99, tau=0.1, seed=6):
        torch.manual_seed(seed)
        self.gen = torch.Generator().manual_seed(seed)
        self.query_net = VibrationEncoder(dim)
        self.key_net = copy.deepcopy(self.query_net).requires_grad_(False)
        self.queue = KeyQueue(dim, queue)
        self.momentum, self.tau = momentum, tau
        self.optimizer = torch.optim.Adam(self.query_net.parameters(), lr=1e-3)
        self.recent = []

    @torch.no_grad()
    def refresh_key_net(self):
        for q, k in zip(self.query_net.parameters(), self.key_net.parameters()):
            k.lerp_(q, 1 - self.momentum)

    def step(self, batch=400):
        x = machine_windows(batch, 40, self.gen)
        q = self.query_net(jitter(x, self.gen))
        with torch.no_grad():
            self.refresh_key_net()
            k = self.key_net(jitter(x, self.gen))
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.negatives().t()
        logits = torch.cat([positive, negative], dim=1) / self.tau
        loss = F.cross_entropy(logits, torch.zeros(batch, dtype=torch.long))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.queue.push(k)
        self.recent.append(loss.item())

    def fit(self, steps=90):
        for i in range(1, steps + 1):
            self.step()
            if i % 15 == 0:
                print(f"step {i:3d} contrastive loss {sum(self.recent) / len(self.recent):.3f}")
                self.recent.clear()


if __name__ == "__main__":
    torch.set_num_threads(1)
    MoCoTrainer().fit()
