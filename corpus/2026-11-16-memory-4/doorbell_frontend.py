"""Doorbell / alarm detector on a continuous filterbank stream with a trainable gain stage."""

from dataclasses import dataclass

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(21)


@dataclass
class StreamConfig:
    mics: int = 64
    bands: int = 64
    frames: int = 14
    chunks: int = 72
    lr: float = 3e-3


def microphone_stream(cfg):
    """Endless consecutive chunks; every microphone keeps its own drifting loudness."""
    g = torch.Generator().manual_seed(5)
    loudness = 1.0 + 4.0 * torch.rand(cfg.mics, 1, 1, generator=g)
    tone = torch.zeros(cfg.bands)
    tone[20:26] = 1.0
    tone[40:44] = 0.7
    while True:
        loudness = loudness * (1 + 0.02 * torch.randn(cfg.mics, 1, 1, generator=g))
        active = (torch.rand(cfg.mics, generator=g) < 0.4).float()
        noise = torch.rand(cfg.mics, cfg.frames, cfg.bands, generator=g)
        energy = loudness * (noise + 0.5 * active.view(-1, 1, 1) * tone)
        yield energy, active


class TrainableGain(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.smooth_logit = nn.Parameter(torch.full((bands,), -2.0))
        self.log_alpha = nn.Parameter(torch.full((bands,), -0.05))
        self.log_root = nn.Parameter(torch.full((bands,), -0.7))
        self.level = None

    def forward(self, energy):
        smooth = torch.sigmoid(self.smooth_logit)
        alpha, root = self.log_alpha.exp(), self.log_root.exp()
        level = energy[:, 0] if self.level is None else self.level
        frames = []
        for t in range(energy.size(1)):
            level = (1 - smooth) * level + smooth * energy[:, t]
            frames.append(energy[:, t] * (level + 1e-4).pow(-alpha))
        self.level = level
        x = torch.stack(frames, dim=1)
        return (x + 2.0).pow(root) - torch.pow(2.0, root)


class Detector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gain = TrainableGain(cfg.bands)
        self.body = nn.Sequential(nn.Linear(cfg.bands, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, 1)

    def forward(self, energy):
        h = self.body(self.gain(energy))
        return self.out(h.mean(dim=1)).squeeze(-1)


def run(cfg=StreamConfig()):
    model = Detector(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    criterion = nn.BCEWithLogitsLoss()
    stream = microphone_stream(cfg)
    smoothed = None
    for i in range(cfg.chunks):
        energy, active = next(stream)
        loss = criterion(model(energy), active)
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
        value = loss.item()
        smoothed = value if smoothed is None else 0.9 * smoothed + 0.1 * value
        if i % 18 == 17:
            print(f"chunk {i + 1:4d}  bce {smoothed:.4f}")


if __name__ == "__main__":
    run()
