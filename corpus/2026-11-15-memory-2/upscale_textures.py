import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Upscaler(nn.Module):
    def __init__(self, width=20, factor=2):
        super().__init__()
        self.head = nn.Conv2d(1, width, 3, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.PReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.PReLU(),
        )
        self.tail = nn.Sequential(
            nn.Conv2d(width, factor**2, 3, padding=1), nn.PixelShuffle(factor)
        )

    def forward(self, low):
        base = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        x = self.head(low)
        return base + self.tail(x + self.body(x))


def textures(n, size, seed):
    gen = torch.Generator().manual_seed(seed)
    grid = torch.linspace(0, 1, size)
    freq = 3 + 12 * torch.rand(n, 2, 1, 1, generator=gen)
    phase = 6.28 * torch.rand(n, 2, 1, 1, generator=gen)
    wave_x = torch.sin(freq[:, 0] * grid[None, None, :] * 3 + phase[:, 0])
    wave_y = torch.sin(freq[:, 1] * grid[None, :, None] * 3 + phase[:, 1])
    high = (wave_x * wave_y).unsqueeze(1) * 0.5 + 0.5
    return TensorDataset(F.avg_pool2d(high, 2), high)


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for low, high in loader:
        loss = F.l1_loss(model(low), high)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def evaluate(model, loader):
    model.eval()
    restored, reference = [], []
    for low, high in loader:
        restored.append(model(low).clamp(0, 1))
        reference.append(high)
    restored, reference = torch.cat(restored), torch.cat(reference)
    mse = F.mse_loss(restored, reference).item()
    return {"psnr": -10 * math.log10(mse), "max_error": (restored - reference).abs().max().item()}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(6)
    train_loader = DataLoader(textures(400, 48, seed=1), batch_size=16, shuffle=True)
    test_loader = DataLoader(textures(384, 48, seed=2), batch_size=32)
    model = Upscaler()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        loss = train_epoch(model, train_loader, optimizer)
        scores = evaluate(model, test_loader)
        print(
            f"epoch {epoch} l1 {loss:.4f} psnr {scores['psnr']:.2f} max {scores['max_error']:.3f}"
        )


if __name__ == "__main__":
    main()
