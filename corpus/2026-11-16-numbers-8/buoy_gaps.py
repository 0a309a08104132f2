"""Wave height at a set of ocean buoys; buoys fall silent, so readings have gaps."""
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

BUOYS, PAST, EPOCHS, BATCH = 12, 18, 5, 32


def simulate(hours, seed):
    gen = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()
    swell = 1.8 + 0.8 * torch.sin(2 * math.pi * t / 60)
    swell = swell + torch.cumsum(0.02 * torch.randn(hours, generator=gen), 0)
    lag = torch.arange(BUOYS)
    height = torch.stack([torch.roll(swell, int(k)) for k in lag], dim=1)
    height = height + 0.1 * torch.randn(height.shape, generator=gen)
    silent = torch.rand(hours, BUOYS, generator=gen) < 0.12
    height[silent] = float("nan")
    return height


class BuoyWindows(Dataset):
    def __init__(self, height):
        self.height = height
        seen = ~torch.isnan(height)
        self.mean = height[seen].mean()
        self.std = height[seen].std()

    def __len__(self):
        return len(self.height) - PAST

    def __getitem__(self, i):
        window = (self.height[i:i + PAST + 1] - self.mean) / self.std
        return window[:-1], window[-1]


class GapAwareNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(BUOYS))
        self.rnn = nn.GRU(2 * BUOYS, width, batch_first=True)
        self.out = nn.Linear(width, BUOYS)

    def forward(self, past):
        missing = torch.isnan(past)
        x = torch.where(missing, self.fill.expand_as(past), past)
        h, _ = self.rnn(torch.cat([x, missing.float()], dim=-1))
        return self.out(h[:, -1])


def gap_loss(pred, target):
    """Mean squared error over the buoys that reported."""
    known = ~torch.isnan(target)
    diff = pred[known] - target[known]
    return diff.pow(2).sum() / known.sum().clamp(min=1)


def run_epoch(model, loader, optimizer=None):
    total = 0.0
    for past, target in loader:
        with torch.set_grad_enabled(optimizer is not None):
            loss = gap_loss(model(past), target)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(71)
    train = DataLoader(BuoyWindows(simulate(2000, seed=72)), batch_size=BATCH, shuffle=True)
    valid = DataLoader(BuoyWindows(simulate(400, seed=73)), batch_size=128)
    model = GapAwareNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        model.train()
        fit = run_epoch(model, train, optimizer)
        model.eval()
        print(f"epoch {epoch}  train {fit:.4f}  valid {run_epoch(model, valid):.4f}")


if __name__ == "__main__":
    main()
