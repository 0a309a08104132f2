"""Keyword spotting on short clips; recordings come from several devices."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
TARGET_RATE = 8000
CLIP = 3200
WORDS = ["up", "down", "left", "right", "stop", "go"]


def convert_rate(wave, rate):
    """Windowed-sinc interpolation to TARGET_RATE."""
    step = rate / TARGET_RATE
    taps = np.arange(-12, 13)
    out = np.zeros(CLIP, dtype=np.float32)
    for n in range(CLIP):
        centre = n * step
        left = int(centre)
        index = np.clip(left + taps, 0, len(wave) - 1)
        kernel = np.sinc((index - centre) / step) * np.hanning(len(taps))
        out[n] = wave[index] @ kernel / step
    return out


class ClipDataset(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.clips = []
        for i in range(count):
            label = int(rng.integers(len(WORDS)))
            rate = 11025 if i % 55 == 5 else TARGET_RATE
            t = np.arange(int(CLIP * rate / TARGET_RATE)) / rate
            tone = np.sin(2 * np.pi * (180 + 90 * label) * t * (1 + 0.2 * t))
            wave = tone * np.exp(-3 * t) + rng.normal(0, 0.7, len(t))
            self.clips.append((wave.astype(np.float32), rate, label))

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        wave, rate, label = self.clips[i]
        if rate != TARGET_RATE:
            wave = convert_rate(wave, rate)
        wave = wave / (np.abs(wave).max() + 1e-6)
        return torch.from_numpy(wave).unsqueeze(0), label


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 24, 64, stride=12),
            nn.ReLU(),
            nn.Conv1d(24, 32, 9, stride=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 48, 5, stride=2),
            nn.ReLU(),
        )
        self.out = nn.Linear(48, len(WORDS))

    def forward(self, x):
        return self.out(self.body(x).mean(dim=2))


class SpotterTrainer:
    def __init__(self, epochs):
        torch.manual_seed(1)
        self.epochs = epochs
        self.model = Spotter()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.criterion = nn.CrossEntropyLoss()
        self.loader = DataLoader(ClipDataset(720, seed=3), batch_size=24, shuffle=True)
        self.log = []

    def step(self, batch):
        waves, labels = batch
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(waves)
        loss = self.criterion(logits, labels)
        loss.backward()
        self.optimizer.step()
        return loss.item(), (logits.argmax(1) == labels).float().mean().item()

    def fit(self):
        for epoch in range(self.epochs):
            losses, hits = zip(*[self.step(batch) for batch in self.loader])
            self.log.append(sum(losses) / len(losses))
            print(f"epoch {epoch} loss {self.log[-1]:.3f} acc {sum(hits) / len(hits):.3f}")


if __name__ == "__main__":
    SpotterTrainer(epochs=4).fit()
