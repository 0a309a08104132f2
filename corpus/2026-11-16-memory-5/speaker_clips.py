import math
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 4000
CLIP = 3000
SPEAKERS = 8


def write_clips(folder, count, seed=0):
    """Buzzing sources through speaker specific resonances, one file each."""
    rng = np.random.default_rng(seed)
    t = np.arange(CLIP + 1000) / RATE
    index = []
    for k in range(count):
        who = int(rng.integers(SPEAKERS))
        f0 = 90 + 8 * who + rng.normal(0, 3)
        wave = sum(np.sin(2 * math.pi * f0 * h * t + rng.uniform(0, 6)) *
                   math.exp(-((f0 * h - 400 - 110 * who) / 260) ** 2) for h in range(1, 14))
        wave = wave / np.abs(wave).max() + 0.1 * rng.standard_normal(len(t))
        path = os.path.join(folder, f"clip{k:04d}.npy")
        np.save(path, wave.astype(np.float32))
        index.append((path, who))
    return index


class SpeedChange:
    """Changes tempo with a band-limited interpolation matrix."""

    def __init__(self, low=0.95, high=1.05, taps=16):
        self.low, self.high, self.taps = low, high, taps
        self.plans = {}

    def plan(self, factor):
        if factor not in self.plans:
            at = np.arange(CLIP) * factor
            base = np.floor(at).astype(np.int32)[:, None]
            idx = base + np.arange(-self.taps // 2 + 1, self.taps // 2 + 1, dtype=np.int32)
            arg = at[:, None] - idx
            window = np.cos(np.pi * arg / (self.taps + 2)) ** 2
            self.plans[factor] = (np.sinc(arg) * window).astype(np.float32), idx
        return self.plans[factor]

    def __call__(self, wave):
        kernel, idx = self.plan(np.random.uniform(self.low, self.high))
        return (wave[np.clip(idx, 0, len(wave) - 1)] * kernel).sum(1)


class ClipSet(Dataset):
    def __init__(self, index, augment=None):
        self.index, self.augment = index, augment

    def __len__(self):
        return len(self.index)

    def __getitem__(self, k):
        path, who = self.index[k]
        wave = np.load(path)
        wave = self.augment(wave) if self.augment else wave[:CLIP]
        return torch.from_numpy(wave.astype(np.float32)), who


def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2 ** 31)


class SpeakerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("win", torch.hann_window(256))
        self.conv = nn.Sequential(
            nn.Conv1d(129, 96, 3, padding=1), nn.BatchNorm1d(96), nn.ReLU(),
            nn.Conv1d(96, 96, 3, padding=1), nn.BatchNorm1d(96), nn.ReLU())
        self.out = nn.Linear(192, SPEAKERS)

    def forward(self, wave):
        spec = torch.stft(wave, 256, 96, window=self.win, return_complex=True).abs()
        h = self.conv(torch.log1p(spec))
        return self.out(torch.cat([h.mean(2), h.std(2)], 1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(31)
    with tempfile.TemporaryDirectory() as folder:
        data = ClipSet(write_clips(folder, 240), SpeedChange())
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2, drop_last=True,
                            persistent_workers=True, worker_init_fn=seed_worker)
        model = SpeakerNet()
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
        for epoch in range(8):
            total, right, seen = 0.0, 0, 0
            for wave, who in loader:
                logits = model(wave)
                loss = loss_fn(logits, who)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item() * len(who)
                right += (logits.argmax(1) == who).sum().item()
                seen += len(who)
            print(f"epoch {epoch}  loss {total / seen:.3f}  accuracy {right / seen:.3f}")


if __name__ == "__main__":
    main()
