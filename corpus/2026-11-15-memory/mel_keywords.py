"""Keyword spotting on synthetic audio; log-mel-like features are made in the loader workers."""

import functools

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KEYWORDS = 10
RATE, CLIP = 4000, 3200


class KeywordClips(Dataset):
    def __init__(self, n, seed=0):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.labels = self.rng.integers(0, KEYWORDS, n)
        window = np.hanning(256).astype(np.float32)
        self.window = window / window.sum()

    def __len__(self):
        return self.n

    def waveform(self, index):
        rng = np.random.default_rng(1000 + index)
        t = np.arange(RATE) / RATE
        f0 = 200 + 120 * self.labels[index]
        glide = np.sin(2 * np.pi * (f0 + 80 * t) * t) + 0.5 * np.sin(4 * np.pi * f0 * t)
        return (glide + 0.8 * rng.standard_normal(RATE)).astype(np.float32)

    @functools.lru_cache(maxsize=None)
    def features(self, index, start):
        clip = self.waveform(index)[start : start + CLIP]
        frames = np.lib.stride_tricks.sliding_window_view(clip, 256)[::48] * self.window
        spectrum = np.abs(np.fft.rfft(frames, axis=1)).astype(np.float32)
        return np.log1p(100 * spectrum)

    def __getitem__(self, index):
        start = int(torch.randint(0, RATE - CLIP, (1,)))
        return torch.from_numpy(self.features(index, start)), int(self.labels[index])


class SpotNet(nn.Module):
    def __init__(self, bins=129):
        super().__init__()
        self.conv = nn.Sequential(
            nn.BatchNorm1d(bins),
            nn.Conv1d(bins, 48, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(48, 48, 3, padding=1),
            nn.ReLU(),
        )
        self.fc = nn.Linear(48, KEYWORDS)

    def forward(self, x):
        return self.fc(self.conv(x.transpose(1, 2)).mean(-1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    loader = DataLoader(
        KeywordClips(800),
        batch_size=16,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = SpotNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        total = right = 0
        for feats, labels in loader:
            logits = model(feats)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f} acc {right / (16 * len(loader)):.3f}")


if __name__ == "__main__":
    main()
