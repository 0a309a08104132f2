"""Learned image signal processor: noisy linear tiles from a satellite camera to display RGB."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    tile: int = 16
    batch: int = 8
    steps: int = 360
    width: int = 16
    lr: float = 2e-3
    edge_fraction: float = 0.0006
    seed: int = 21


def to_display(linear):
    """sRGB transfer curve."""
    low = 12.92 * linear
    high = 1.055 * linear.clamp(max=1.0) ** (1 / 2.4) - 0.055
    return torch.where(linear <= 0.0031308, low, high)


class TileSource:
    """Synthetic scenes: smooth reflectance with fields, illumination and shot noise."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)

    def _scene(self, n):
        t = self.cfg.tile
        coarse = torch.rand(n, 3, 5, 5, generator=self.gen)
        scene = nn.functional.interpolate(coarse, size=(t, t), mode="bicubic", align_corners=False)
        sun = 0.3 + 0.6 * torch.rand(n, 1, 1, 1, generator=self.gen)
        return (scene.clamp(0.05, 1.0) * sun).clamp(0.01, 1.0)

    def _footprint(self, n):
        """1 inside the swath, 0 outside of it; only tiles at the rim are cut."""
        t = self.cfg.tile
        mask = torch.ones(n, 1, t, t)
        rim = torch.rand(n, generator=self.gen) < self.cfg.edge_fraction
        for i in torch.nonzero(rim).flatten().tolist():
            cut = int(torch.randint(3, t // 2, (1,), generator=self.gen))
            mask[i, :, :, :cut] = 0.0
        return mask

    def batch(self):
        clean = self._scene(self.cfg.batch)
        mask = self._footprint(self.cfg.batch)
        noise = torch.randn(clean.shape, generator=self.gen)
        raw = clean + (0.02 + 0.1 * clean.sqrt()) * noise
        return raw * mask, clean * mask, mask


class Isp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, raw, mask):
        linear = torch.sigmoid(self.net(torch.cat([raw, mask], dim=1)))
        return linear * mask


class Runner:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.source = TileSource(cfg)
        self.model = Isp(cfg.width)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    def loss(self, raw, clean, mask):
        shown = to_display(self.model(raw, mask))
        wanted = to_display(clean)
        return ((shown - wanted).abs() * mask).sum() / (3 * mask.sum())

    def run(self):
        average = None
        for step in range(self.cfg.steps):
            loss = self.loss(*self.source.batch())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            value = loss.item()
            average = value if average is None else 0.95 * average + 0.05 * value
            if step % 30 == 0:
                print(f"{step:4d}  L1 in display space {average:.4f}")
        with torch.no_grad():
            test = torch.stack([self.loss(*self.source.batch()) for _ in range(10)]).mean()
        print(f"final {test.item():.4f}")


if __name__ == "__main__":
    Runner(Config()).run()
