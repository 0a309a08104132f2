"""Residual CNN that removes Gaussian noise from synthetic textures."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(7)

SIZE = 40
SIGMA = 0.15
EPOCHS = 2


def make_textures(count):
    ys, xs = torch.meshgrid(torch.linspace(0, 1, SIZE), torch.linspace(0, 1, SIZE), indexing="ij")
    freq = torch.rand(count, 3, 2) * 18 + 2
    phase = torch.rand(count, 3) * 6.28
    waves = torch.sin(
        freq[:, :, 0, None, None] * xs + freq[:, :, 1, None, None] * ys + phase[:, :, None, None]
    )
    return (waves.mean(1, keepdim=True) + 1) / 2


class ResidualDenoiser(nn.Module):
    def __init__(self, width=10, depth=4):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.Conv2d(width, 1, 3, padding=1))
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return x - self.body(x)


def psnr(restored, clean):
    mse = (restored.clamp(0, 1) - clean).pow(2).mean(dim=(1, 2, 3))
    return (-10 * torch.log10(mse)).mean()


def train_one_epoch(model, loader, optimizer):
    model.train()
    total_loss, total_psnr = 0.0, 0.0
    for (clean,) in loader:
        noisy = clean + SIGMA * torch.randn_like(clean)
        restored = model(noisy)
        loss = nn.functional.l1_loss(restored, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        total_psnr += psnr(restored, clean)
    return total_loss / len(loader), total_psnr.item() / len(loader)


@torch.no_grad()
def validate(model, clean):
    model.eval()
    noisy = clean + SIGMA * torch.randn_like(clean)
    return psnr(model(noisy), clean).item()


def main():
    loader = DataLoader(
        TensorDataset(make_textures(1760)), batch_size=16, shuffle=True, drop_last=True
    )
    held_out = make_textures(64)
    model = ResidualDenoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        start = time.time()
        loss, quality = train_one_epoch(model, loader, optimizer)
        val = validate(model, held_out)
        print(
            f"epoch {epoch} l1 {loss:.4f} psnr {quality:.2f} val {val:.2f} ({time.time() - start:.1f}s)"
        )


if __name__ == "__main__":
    main()
