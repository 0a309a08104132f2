import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPECIES = ["wren", "robin", "thrush", "warbler", "finch"]


@dataclass
class Config:
    clips: int = 144
    samples: int = 4200
    batch_size: int = 12
    epochs: int = 14
    lr: float = 1.5e-3
    seed: int = 11


def encode_adpcm(signal):
    """4-bit differential coding, the way the field recorders store their clips."""
    codes, pred, step = [], 0.0, 0.02
    for s in signal.tolist():
        q = max(-7, min(7, int(round((s - pred) / step))))
        codes.append(q)
        pred += q * step
        step = min(0.3, max(0.004, step * (1.25 if abs(q) > 4 else 0.95)))
    return bytes(c + 8 for c in codes)


def decode_adpcm(raw):
    out, pred, step = [], 0.0, 0.02
    for b in raw:
        q = b - 8
        pred += q * step
        out.append(pred)
        step = min(0.3, max(0.004, step * (1.25 if abs(q) > 4 else 0.95)))
    return np.array(out, dtype=np.float32)


class CallDataset(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        t = np.arange(cfg.samples) / 8000
        self.items = []
        for _ in range(cfg.clips):
            k = int(rng.integers(len(SPECIES)))
            f0 = 500 + 450 * k + rng.uniform(-80, 80)
            chirp = np.sin(2 * math.pi * (f0 * t + 300 * (k % 2) * t ** 2))
            envelope = 0.5 + 0.5 * np.sin(2 * math.pi * (4 + k) * t + rng.uniform(0, 6))
            self.items.append((encode_adpcm(0.6 * chirp * envelope + rng.normal(0, 0.05, cfg.samples)), k))
        self.window = torch.hann_window(256)
        self.cache = {}

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        if i not in self.cache:
            raw, label = self.items[i]
            wave = torch.from_numpy(decode_adpcm(raw))
            spec = torch.stft(wave, 256, 128, window=self.window, return_complex=True).abs()
            self.cache[i] = (torch.log1p(spec[:64]).unsqueeze(0), label)
        return self.cache[i]


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d((8, 2)), nn.Flatten(),
        )
        self.head = nn.Linear(256, len(SPECIES))

    def forward(self, x):
        return self.head(self.body(x))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.loader = DataLoader(CallDataset(cfg), batch_size=cfg.batch_size, shuffle=True, num_workers=1)
        self.model = CallNet()
        self.optim = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.loss_fn = nn.CrossEntropyLoss()

    def run_epoch(self):
        losses, hits, n = [], 0, 0
        for spec, label in self.loader:
            logits = self.model(spec)
            loss = self.loss_fn(logits, label)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            losses.append(loss.item())
            hits += int((logits.argmax(1) == label).sum())
            n += len(label)
        return sum(losses) / len(losses), hits / n

    def fit(self):
        for epoch in range(self.cfg.epochs):
            loss, acc = self.run_epoch()
            print(f"[{epoch + 1:2d}/{self.cfg.epochs}] loss={loss:.3f} acc={acc:.2f}")


if __name__ == "__main__":
    config = Config()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    Trainer(config).fit()
