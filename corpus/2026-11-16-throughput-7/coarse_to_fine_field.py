"""Fit a 2D radiance-like field with a coarse-to-fine positional encoding (as in BARF)."""
import math

import torch
import torch._dynamo
import torch.nn as nn

torch.manual_seed(21)
torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 256


class AnnealedEncoding(nn.Module):
    def __init__(self, bands=8, start=4, end=24):
        super().__init__()
        self.bands = bands
        self.start, self.end = start, end
        self.epoch = 0

    def band_weight(self, k):
        alpha = (self.epoch - self.start) / (self.end - self.start) * self.bands
        return 0.5 * (1.0 - math.cos(math.pi * min(max(alpha - k, 0.0), 1.0)))

    def forward(self, xy):
        feats = [xy]
        for k in range(self.bands):
            w = self.band_weight(k)
            arg = xy * (2.0 ** k) * math.pi
            feats.append(w * torch.sin(arg))
            feats.append(w * torch.cos(arg))
        return torch.cat(feats, dim=-1)


class Field(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        self.encoding = AnnealedEncoding()
        dims = [2 + 4 * self.encoding.bands] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.rgb = nn.Linear(width, 3)

    def forward(self, xy):
        h = self.encoding(xy)
        for layer in self.layers:
            h = torch.relu(layer(h))
        return torch.sigmoid(self.rgb(h))


def picture(xy):
    x, y = xy.unbind(-1)
    r = 0.5 + 0.5 * torch.sin(18 * x * y + 3 * x)
    g = ((x ** 2 + y ** 2).sqrt() * 9).sin().abs()
    b = torch.sigmoid(8 * torch.sin(11 * x) * torch.cos(7 * y))
    return torch.stack([r, g, b], -1)


def psnr(mse):
    return -10 * math.log10(mse)


field = Field()
render = torch.compile(field, backend="eager")
optimizer = torch.optim.Adam(field.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.995)

epochs, batches = 34, 5
for epoch in range(epochs):
    field.encoding.epoch = epoch
    for _ in range(batches):
        xy = torch.rand(512, 2) * 2 - 1
        loss = nn.functional.mse_loss(render(xy), picture(xy))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    if epoch % 9 == 0 or epoch == epochs - 1:
        print(f"epoch {epoch:3d}  mse {loss.item():.4f}  psnr {psnr(loss.item()):.2f} dB")

with torch.no_grad():
    axis = torch.linspace(-1, 1, 64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    final = nn.functional.mse_loss(field(grid), picture(grid)).item()
print(f"grid psnr {psnr(final):.2f} dB")
