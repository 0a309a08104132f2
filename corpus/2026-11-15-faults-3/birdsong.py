"""Bird call recognition from log filterbank features computed per recording."""

import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

RATE = 8000


class BirdCalls(Dataset):
    def __init__(self, n=512, seconds=0.3, species=6, bands=16, frame=256, hop=128):
        rng = np.random.default_rng(13)
        self.labels = rng.integers(0, species, n)
        t = np.arange(int(seconds * RATE)) / RATE
        tones = 600 + 450 * self.labels[:, None] + 80 * rng.random((n, 1))
        self.audio = np.sin(2 * math.pi * tones * t) + 0.6 * rng.normal(size=(n, len(t)))
        self.frame, self.hop = frame, hop
        self.edges = np.linspace(2, frame // 2 - 2, bands + 1).astype(int)

    def __len__(self):
        return len(self.labels)

    def filterbank(self, wave):
        taper = np.hanning(self.frame)
        rows = []
        for start in range(0, len(wave) - self.frame, self.hop):
            power = np.abs(np.fft.rfft(wave[start : start + self.frame] * taper)) ** 2
            bands = [power[lo:hi].mean() for lo, hi in zip(self.edges[:-1], self.edges[1:])]
            rows.append(np.log(np.array(bands) + 1e-6))
        return np.stack(rows).T

    def __getitem__(self, i):
        feats = self.filterbank(self.audio[i])
        feats = (feats - feats.mean()) / feats.std()
        return torch.from_numpy(feats).float(), int(self.labels[i])


class CallNet(nn.Module):
    def __init__(self, bands=16, species=6):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(bands, 64, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, padding=2),
            nn.ReLU(),
        )
        self.out = nn.Linear(64, species)

    def forward(self, x):
        return self.out(self.conv(x).mean(-1))


if __name__ == "__main__":
    torch.manual_seed(13)
    loader = DataLoader(BirdCalls(), batch_size=16, shuffle=True, num_workers=0)
    net = CallNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(5):
        hits = 0
        for feats, species in loader:
            logits = net(feats)
            loss = nn.functional.cross_entropy(logits, species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == species).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / len(loader.dataset):.3f}")
