"""Heading of a ground robot from a window of magnetometer and gyro readings (Accelerate)."""
import math

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

WINDOW = 32
N_TRAIN, N_TEST = 4800, 800
EPOCHS = 3


def simulate(n, gen):
    heading = (torch.rand(n, generator=gen) * 2 - 1) * math.pi
    rate = 0.6 * torch.randn(n, generator=gen)
    t = (torch.arange(WINDOW) - (WINDOW - 1)) * 0.05
    angle = heading[:, None] + rate[:, None] * t
    # hard and soft iron distortion of the carrier
    mx = 1.15 * torch.cos(angle) + 0.20 * torch.sin(angle) + 0.30
    my = 0.85 * torch.sin(angle) - 0.10 * torch.cos(angle) - 0.15
    gyro = rate[:, None].expand(-1, WINDOW)
    x = torch.stack([mx, my, gyro], dim=1)
    x = x + 0.08 * torch.randn(x.shape, generator=gen)
    y = torch.stack([torch.cos(heading), torch.sin(heading)], dim=1)
    return x, y


class HeadingNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(3, width, 5, padding=2), nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2), nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2), nn.GELU(),
        )
        self.fc = nn.Sequential(nn.Linear(width * 8, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x):
        out = self.fc(self.conv(x).flatten(1))
        return nn.functional.normalize(out, dim=1)


def angular_error(pred, target):
    cosine = (pred * target).sum(dim=1)
    # rounding may carry the product slightly past one
    return torch.acos(cosine.clamp(-1.0, 1.0))


def evaluate(model, loader):
    model.eval()
    errors = []
    with torch.no_grad():
        for x, y in loader:
            errors.append(angular_error(model(x), y))
    model.train()
    return math.degrees(torch.cat(errors).mean().item())


def main():
    set_seed(8)
    gen = torch.Generator().manual_seed(30)
    train = TensorDataset(*simulate(N_TRAIN, gen))
    test = TensorDataset(*simulate(N_TEST, gen))

    accelerator = Accelerator(cpu=True)
    model = HeadingNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    train_loader = DataLoader(train, batch_size=32, shuffle=True)
    test_loader = DataLoader(test, batch_size=200)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train_loader))
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )

    for epoch in range(EPOCHS):
        running = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = angular_error(model(x), y).mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            running += loss.item()
        degrees = evaluate(model, test_loader)
        accelerator.print(
            f"epoch {epoch}  train {running / len(train_loader):.4f} rad  test {degrees:.2f} deg"
        )


if __name__ == "__main__":
    main()
