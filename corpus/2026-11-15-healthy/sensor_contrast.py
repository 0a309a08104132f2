import copy
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(8)


def make_windows(count, channels=3, length=96):
    t = torch.linspace(0, 1, length)
    speed = 2 + 14 * torch.rand(count, channels, 1)
    phase = 6.28 * torch.rand(count, channels, 1)
    return torch.sin(6.28 * speed * t + phase) + 0.1 * torch.randn(count, channels, length)


def augment(windows):
    gain = 0.7 + 0.6 * torch.rand(len(windows), 1, 1)
    shift = int(torch.randint(-6, 7, ()))
    return gain * windows.roll(shift, dims=-1) + 0.03 * torch.randn_like(windows)


class Encoder(nn.Module):
    def __init__(self, channels=3, out=64):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(channels, 32, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(32, 64, 5, stride=2, padding=2),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            nn.Conv1d(64, 96, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.project = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, out))

    def forward(self, x):
        return F.normalize(self.project(self.conv(x).mean(-1)), dim=-1)


class MomentumContrast:
    def __init__(self, batches_kept=40, momentum=0.99, temperature=0.1):
        self.query = Encoder()
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.bank = deque(maxlen=batches_kept)
        self.momentum = momentum
        self.temperature = temperature

    @torch.no_grad()
    def encode_keys(self, windows):
        for old, new in zip(self.key.parameters(), self.query.parameters()):
            old.lerp_(new, 1 - self.momentum)
        return self.key(windows)

    def loss(self, windows):
        queries = self.query(augment(windows))
        keys = self.encode_keys(augment(windows))
        positive = (queries * keys).sum(-1, keepdim=True)
        if self.bank:
            negative = queries @ torch.cat(list(self.bank)).T
        else:
            negative = queries @ keys.flip(0).T
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        self.bank.append(keys)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def main():
    data = TensorDataset(make_windows(7680))
    loader = DataLoader(data, batch_size=96, shuffle=True, drop_last=True)
    task = MomentumContrast()
    optimizer = torch.optim.AdamW(task.query.parameters(), lr=1e-3)
    for epoch in range(5):
        values = []
        for (windows,) in loader:
            loss = task.loss(windows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        stored = sum(len(keys) for keys in task.bank)
        print(f"epoch {epoch} loss {sum(values) / len(values):.4f} stored keys {stored}")


main()
