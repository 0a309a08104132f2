"""Beat classification on single-lead ECG windows (synthetic stand-in for our recordings)."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 40


class BeatWindows(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 1, WINDOW)
        self.label = torch.randint(0, 2, (n,), generator=g)
        width = torch.where(self.label == 1, 0.12, 0.05).unsqueeze(1)
        centre = 0.4 + 0.2 * torch.rand(n, 1, generator=g)
        gain = 300 + 400 * torch.rand(n, 1, generator=g)
        self.adc = gain * torch.exp(-(((t - centre) / width) ** 2))
        self.adc += 1024 + 20 * torch.randn(n, WINDOW, generator=g)
        self.adc = self.adc.round()
        self.adc[66] = 1024.0  # electrode off

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        window = self.adc[i]
        window = (window - window.mean()) / window.std()
        return window.unsqueeze(0), self.label[i]


class BeatNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, channels, 5, padding=2),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(channels, channels, 5, padding=2),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(channels, 2)

    def forward(self, x):
        return self.head(self.body(x))


def run_epoch(model, loader, criterion, optimizer, log):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        log(loss.item())


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=168)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    opt = parser.parse_args(argv)

    torch.manual_seed(opt.seed)
    loader = DataLoader(
        BeatWindows(opt.windows, opt.seed),
        batch_size=opt.batch_size,
        shuffle=True,
        num_workers=opt.workers,
        generator=torch.Generator().manual_seed(opt.seed),
        persistent_workers=True,
    )
    model = BeatNet(opt.channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []

    def log(value):
        if len(history) % 4 == 0:
            print(f"[{len(history):3d}] {value:.4f}")
        history.append(value)

    for _ in range(opt.epochs):
        run_epoch(model, loader, nn.CrossEntropyLoss(), optimizer, log)
    print("final loss", history[-1])


if __name__ == "__main__":
    main()
