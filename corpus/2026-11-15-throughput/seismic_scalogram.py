"""Earthquake or quarry blast? Classifies seismograms by their scalograms."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    events: int = 560
    samples: int = 1500
    scales: tuple = tuple(np.geomspace(3, 40, 20))
    batch_size: int = 14
    workers: int = 1
    epochs: int = 3
    lr: float = 1e-3
    history: list = field(default_factory=list)


class Seismograms(Dataset):
    def __init__(self, settings):
        self.settings = settings
        rng = np.random.default_rng(2)
        self.labels = rng.integers(0, 2, settings.events)
        t = np.arange(settings.samples)
        traces = []
        for label in self.labels:
            onset = rng.integers(200, 600)
            envelope = np.where(t > onset, np.exp(-(t - onset) / (250 if label else 90)), 0)
            freq = 0.12 if label else 0.25
            traces.append(envelope * np.sin(freq * t) * 3 + rng.normal(0, 0.6, len(t)))
        self.traces = np.array(traces)

    def __len__(self):
        return len(self.labels)

    def scalogram(self, trace):
        rows = []
        for scale in self.settings.scales:
            grid = np.arange(-4 * scale, 4 * scale + 1)
            wavelet = np.exp(1j * 5 * grid / scale - 0.5 * (grid / scale) ** 2) / np.sqrt(scale)
            rows.append(np.abs(np.convolve(trace, wavelet, mode="same")))
        return np.log1p(np.stack(rows))[:, ::12]

    def __getitem__(self, index):
        picture = self.scalogram(self.traces[index])
        return torch.as_tensor(picture, dtype=torch.float32)[None], int(self.labels[index])


def make_network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((5, 8)),
        nn.Flatten(),
        nn.Linear(640, 2),
    )


def train(settings):
    dataset = Seismograms(settings)
    loader = DataLoader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=settings.workers,
        persistent_workers=True,
    )
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    for epoch in range(settings.epochs):
        running = 0.0
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(network(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        settings.history.append(running / len(loader))
        print("epoch", epoch, "loss", round(settings.history[-1], 4))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(Settings())
