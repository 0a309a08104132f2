import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class FocalLoss(nn.Module):
    def __init__(self, gamma=1.0, alpha=0.75):
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits, target):
        p = torch.sigmoid(logits).clamp(1e-6, 1 - 1e-6)
        positive = -self.alpha * (1 - p).pow(self.gamma) * torch.log(p)
        negative = -(1 - self.alpha) * p.pow(self.gamma) * torch.log(1 - p)
        return torch.where(target > 0, positive, negative).mean()


class FraudNet(nn.Module):
    def __init__(self, n_in=12, width=48):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(n_in, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x).squeeze(-1)


class Meter:
    def __init__(self):
        self.total = 0.0
        self.count = 0
        self.elapsed = 0.0

    @contextmanager
    def timed(self):
        start = time.perf_counter()
        try:
            yield
        finally:
            self.elapsed += time.perf_counter() - start
            self.count += 1


def transactions(n=960, n_in=12):
    g = torch.Generator().manual_seed(50)
    x = 2.0 * torch.randn(n, n_in, generator=g)
    y = (x[:, :3].sum(dim=1) > 1.0).float()
    return TensorDataset(x, y)


def main():
    torch.manual_seed(26)
    loader = DataLoader(transactions(), batch_size=24, shuffle=True)
    model, criterion, meter = FraudNet(), FocalLoss(), Meter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        try:
            with meter.timed(), torch.autocast("cpu", dtype=torch.bfloat16):
                loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        finally:
            meter.total += float(loss.detach())
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"{meter.count} steps")


if __name__ == "__main__":
    main()
