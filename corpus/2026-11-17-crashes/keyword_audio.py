"""Keyword spotting on synthetic tones with a 1-d convolutional network."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 4000
CLIP = 2000
WORDS = ["yes", "no", "stop", "go"]


class Keywords(Dataset):
    """Recordings of up to one second; a random piece of CLIP samples is cut out of each."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.durations = (0.55 + 0.45 * torch.rand(count, generator=gen)).tolist()
        self.durations[170] = 0.44
        self.labels = torch.randint(len(WORDS), (count,), generator=gen).tolist()
        self.seed = seed

    def __len__(self):
        return len(self.labels)

    def record(self, index):
        gen = torch.Generator().manual_seed(self.seed * 100003 + index)
        time = torch.arange(int(self.durations[index] * RATE)) / RATE
        pitch = 200.0 + 150.0 * self.labels[index]
        wave = torch.sin(2 * math.pi * pitch * time)
        return wave + 0.3 * torch.randn(wave.shape, generator=gen)

    def __getitem__(self, index):
        wave = self.record(index)
        start = torch.randint(max(1, len(wave) - CLIP), (1,)).item()
        clip = wave[start : start + CLIP]
        clip = (clip - clip.mean()) / clip.std()
        return clip.unsqueeze(0), self.labels[index]


class Spotter(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 31, stride=4),
            nn.ReLU(),
            nn.Conv1d(16, 32, 15, stride=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(32, words),
        )

    def forward(self, x):
        return self.net(x)


def fit(model, loader, epochs, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        hits, seen = 0, 0
        for clips, labels in loader:
            logits = model(clips)
            loss = criterion(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
        print(f"epoch {epoch}: accuracy {hits / seen:.3f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Keywords(320, seed=2), batch_size=10, num_workers=2)
    fit(Spotter(len(WORDS)), loader, epochs=3, lr=2e-3)


if __name__ == "__main__":
    main()
