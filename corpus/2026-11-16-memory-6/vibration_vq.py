"""VQ autoencoder for bearing vibration frames with a moving-average codebook."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    frame: int = 128
    tokens: int = 8
    dim: int = 24
    codes: int = 96
    batch: int = 128
    steps: int = 320
    decay: float = 0.98
    lr: float = 1.5e-3


class Codebook(nn.Module):
    def __init__(self, codes, dim, decay):
        super().__init__()
        self.decay = decay
        table = torch.randn(codes, dim) * 0.5
        self.register_buffer("table", table)
        self.register_buffer("usage", torch.ones(codes))
        self.register_buffer("total", table.clone())

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        dist = torch.cdist(flat.detach(), self.table)
        index = dist.argmin(dim=1)
        quantized = self.table[index].view_as(z)
        if self.training:
            self.update(flat, index)
        commit = F.mse_loss(z, quantized)
        return z + (quantized - z).detach(), commit, index

    def update(self, flat, index):
        onehot = F.one_hot(index, len(self.table)).to(flat.dtype)
        self.usage = self.decay * self.usage + (1 - self.decay) * onehot.sum(0)
        self.total = self.decay * self.total + (1 - self.decay) * onehot.t() @ flat
        n = self.usage.sum()
        smoothed = (self.usage + 1e-5) / (n + len(self.table) * 1e-5) * n
        self.table = (self.total / smoothed.unsqueeze(1)).detach()


class VQAutoencoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder = nn.Sequential(
            nn.Linear(cfg.frame, 192), nn.GELU(), nn.Linear(192, cfg.tokens * cfg.dim),
            nn.Unflatten(1, (cfg.tokens, cfg.dim)))
        self.codebook = Codebook(cfg.codes, cfg.dim, cfg.decay)
        self.decoder = nn.Sequential(
            nn.Flatten(), nn.Linear(cfg.tokens * cfg.dim, 192), nn.GELU(), nn.Linear(192, cfg.frame))

    def forward(self, x):
        q, commit, index = self.codebook(self.encoder(x))
        return self.decoder(q), commit, index


def record(n, length):
    t = torch.arange(length) / length
    shaft = 2 + 4 * torch.rand(n, 1)
    x = torch.sin(2 * math.pi * (shaft * t + torch.rand(n, 1)))
    defect = (torch.rand(n, 1) < 0.4).float()
    ring = torch.exp(-30 * ((t * shaft + torch.rand(n, 1)) % 1)) * torch.sin(2 * math.pi * 40 * t)
    return x + 1.5 * defect * ring + 0.05 * torch.randn(n, length)


def train(cfg):
    data = record(8000, cfg.frame)
    model = VQAutoencoder(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    model.train()
    for step in range(1, cfg.steps + 1):
        x = data[torch.randint(0, len(data), (cfg.batch,))]
        recon, commit, index = model(x)
        rec = F.mse_loss(recon, x)
        loss = rec + 0.25 * commit
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            p = torch.bincount(index, minlength=cfg.codes).float() / index.numel()
            perplexity = torch.exp(-(p * (p + 1e-9).log()).sum())
            print(f"{step:4d}  rec {rec.item():.4f}  commit {commit.item():.4f}  perplexity {perplexity.item():.1f}")
    return model, data


if __name__ == "__main__":
    torch.manual_seed(42)
    torch.set_num_threads(1)
    cfg = Config()
    model, data = train(cfg)
    model.eval()
    with torch.no_grad():
        recon, _, _ = model(data[:1000])
    print("reconstruction error", round(F.mse_loss(recon, data[:1000]).item(), 4))
