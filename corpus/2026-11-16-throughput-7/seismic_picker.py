"""P-wave arrival picking on three-component station records."""
import os
import shutil
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

N_RECORDS = 216
N_SAMPLES = 512


def write_catalogue(path, seed=11):
    rng = np.random.default_rng(seed)
    t = np.arange(N_SAMPLES)
    waves = rng.normal(0, 0.3, size=(N_RECORDS, 3, N_SAMPLES)).astype(np.float32)
    picks = rng.integers(60, N_SAMPLES - 120, size=N_RECORDS)
    for i, p in enumerate(picks):
        env = np.where(t >= p, np.exp(-(t - p) / 60.0), 0.0)
        freq = rng.uniform(0.05, 0.2)
        for c in range(3):
            waves[i, c] += rng.uniform(0.8, 2.0) * env * np.sin(freq * (t - p) * 2 * np.pi)
    waves = np.round(waves * 256).astype(np.int16)
    snr = rng.uniform(1, 10, size=N_RECORDS).astype(np.float32)
    np.savez_compressed(path, waves=waves, picks=picks, snr=snr)


class StationRecords(Dataset):
    """One record: waveform in counts, scaled per channel, and a soft pick label."""

    def __init__(self, path, sigma=6.0):
        self.archive = np.load(path)
        self.length = len(self.archive["picks"])
        self.picks = self.archive["picks"]
        self.sigma = sigma
        self.grid = np.arange(N_SAMPLES)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        wave = self.archive["waves"][index].astype(np.float32)
        wave = wave - wave.mean(axis=1, keepdims=True)
        wave = wave / (wave.std(axis=1, keepdims=True) + 1e-6)
        pick = self.picks[index]
        target = np.exp(-((self.grid - pick) ** 2) / (2 * self.sigma ** 2)).astype(np.float32)
        return torch.from_numpy(wave), torch.from_numpy(target), int(pick)


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 7, stride=stride, padding=3)
        self.norm = nn.BatchNorm1d(cout)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Picker(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enc1 = ConvBlock(3, width)
        self.enc2 = ConvBlock(width, width * 2, stride=2)
        self.enc3 = ConvBlock(width * 2, width * 2, stride=2)
        self.dec2 = ConvBlock(width * 4, width)
        self.dec1 = ConvBlock(width * 2, width)
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(a)
        c = self.enc3(b)
        u = self.dec2(torch.cat([F.interpolate(c, scale_factor=2.0), b], dim=1))
        u = self.dec1(torch.cat([F.interpolate(u, scale_factor=2.0), a], dim=1))
        return self.head(u).squeeze(1)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    errors = []
    for wave, _, pick in loader:
        errors.append((model(wave).argmax(dim=1) - pick).abs().float())
    model.train()
    return torch.cat(errors).median().item()


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="picker_")
    try:
        path = os.path.join(folder, "catalogue.npz")
        write_catalogue(path)
        train_set, val_set = random_split(StationRecords(path), [N_RECORDS - 40, 40])
        train_loader = DataLoader(train_set, batch_size=4, shuffle=True, drop_last=True)
        val_loader = DataLoader(val_set, batch_size=20)
        model = Picker()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for epoch in range(4):
            total = 0.0
            for wave, target, _ in train_loader:
                optimizer.zero_grad()
                loss = F.binary_cross_entropy_with_logits(model(wave), target)
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}  loss {total / len(train_loader):.4f}  "
                  f"median pick error {evaluate(model, val_loader):.1f} samples")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
