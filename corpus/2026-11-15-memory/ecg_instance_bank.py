"""Instance discrimination on ECG windows with a feature bank for negatives."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class BeatDataset(Dataset):
    """One quasi-periodic trace per patient; two random crops per item."""

    def __init__(self, n, length=384, crop=192):
        t = torch.arange(length).float()
        rate = torch.rand(n, 1) * 0.12 + 0.06
        shape = torch.rand(n, 3, 1) * 2 - 1
        wave = sum(shape[:, k] * torch.sin((k + 1) * rate * t) for k in range(3))
        self.traces = wave + 0.05 * torch.randn(n, length)
        self.crop = crop

    def __len__(self):
        return len(self.traces)

    def view(self, trace):
        s = random.randrange(len(trace) - self.crop)
        return (trace[s : s + self.crop] * random.uniform(0.8, 1.2)).unsqueeze(0)

    def __getitem__(self, i):
        return i, self.view(self.traces[i]), self.view(self.traces[i])


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 24, 9, stride=2, padding=4),
            nn.ReLU(),
            nn.Conv1d(24, 32, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(32, 48, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.proj = nn.Linear(48, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.conv(x).mean(-1)), dim=-1)


class FeatureBank:
    entries = {}

    @classmethod
    def write(cls, ids, features):
        for i, f in zip(ids.tolist(), features):
            cls.entries[i] = f

    @classmethod
    def negatives(cls, count):
        if len(cls.entries) < count:
            return None
        picked = random.sample(sorted(cls.entries), count)
        return torch.stack([cls.entries[i] for i in picked]).detach()


def info_nce(query, key, negatives, tau=0.2):
    pos = (query * key).sum(-1, keepdim=True)
    others = query @ negatives.t() if negatives is not None else query @ key.t()
    logits = torch.cat([pos, others], dim=1) / tau
    return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))


def pretrain(batch_size=48, n_batches=210):
    loader = DataLoader(BeatDataset(batch_size * n_batches), batch_size, shuffle=True)
    encoder = Encoder()
    opt = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    window = []
    for it, (ids, a, b) in enumerate(loader):
        query = encoder(a)
        key = encoder(b)
        loss = info_nce(query, key.detach(), FeatureBank.negatives(96))
        opt.zero_grad()
        loss.backward()
        opt.step()
        FeatureBank.write(ids, key)
        window.append(loss.item())
        if len(window) == 30:
            print(f"batch {it + 1:4d}  nce {sum(window) / len(window):.3f}")
            window.clear()
    return encoder


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(5)
    random.seed(5)
    pretrain()
