"""Keyword classification on raw waveforms with a small 1-D conv net."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(11)

N_CLIPS, SAMPLES, N_WORDS, SR = 1400, 16000, 10, 16000


def record_corpus(folder):
    rng = np.random.default_rng(11)
    path = os.path.join(folder, "clips.i16")
    store = np.memmap(path, dtype=np.int16, mode="w+", shape=(N_CLIPS, SAMPLES))
    t = np.arange(SAMPLES) / SR
    noise = rng.normal(0, 3000, SAMPLES * 2)
    words = rng.integers(0, N_WORDS, N_CLIPS)
    for i, w in enumerate(words):
        tone = np.sin(2 * np.pi * (240 + 45 * w + rng.normal(0, 8)) * t + rng.uniform(0, 6.28))
        start = rng.integers(0, SAMPLES)
        store[i] = (6000 * rng.uniform(0.15, 0.4) * tone + noise[start : start + SAMPLES]).astype(
            np.int16
        )
    store.flush()
    return path, words


class ClipDataset(Dataset):
    def __init__(self, path, words, indices):
        self.store = np.memmap(path, dtype=np.int16, mode="r", shape=(N_CLIPS, SAMPLES))
        self.words = words
        self.indices = indices
        self._decoded = {}

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, k):
        i = self.indices[k]
        wave = self._decoded.get(i)
        if wave is None:
            wave = torch.from_numpy(self.store[i].astype(np.float32) / 32768.0)
            wave = (wave - wave.mean()) / (wave.std() + 1e-5)
            self._decoded[i] = wave
        return wave, int(self.words[i])


class WordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(1, 24, 160, stride=40)
        self.body = nn.Sequential(
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Conv1d(24, 48, 5, stride=2),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.Conv1d(48, 64, 5, stride=2),
            nn.ReLU(),
        )
        self.out = nn.Linear(64, N_WORDS)

    def forward(self, x):
        return self.out(self.body(self.front(x.unsqueeze(1))).mean(-1))


def evaluate(net, loader):
    net.eval()
    right = torch.zeros((), dtype=torch.long)
    with torch.no_grad():
        for wave, word in loader:
            right += (net(wave).argmax(1) == word).sum()
    net.train()
    return right.item() / len(loader.dataset)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path, words = record_corpus(folder)
        order = np.random.default_rng(0).permutation(N_CLIPS).tolist()
        train = DataLoader(
            ClipDataset(path, words, order[:1120]), batch_size=20, shuffle=True, drop_last=True
        )
        dev = DataLoader(ClipDataset(path, words, order[1280:]), batch_size=40)
        net = WordNet()
        opt = torch.optim.AdamW(net.parameters(), lr=8e-4, weight_decay=1e-3)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=5 * len(train))
        curve = []
        for epoch in range(5):
            epoch_losses = []
            for wave, word in train:
                loss = F.cross_entropy(net(wave), word)
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
                epoch_losses.append(loss.item())
            curve.append(sum(epoch_losses) / len(epoch_losses))
            print(f"epoch {epoch} loss {curve[-1]:.3f} dev acc {evaluate(net, dev):.3f}")


if __name__ == "__main__":
    main()
