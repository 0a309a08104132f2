"""Two-tower contrastive training (InfoNCE, both directions)."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class TowerConfig:
    in_dim: int = 20
    hidden: int = 64
    out_dim: int = 16


@dataclass
class TrainConfig:
    batch_size: int = 32
    steps: int = 60
    lr: float = 2e-2
    temperature: float = 0.05
    tower: TowerConfig = field(default_factory=TowerConfig)


def log_sum_exp(x, dim):
    return torch.log(torch.exp(x).sum(dim=dim))


def info_nce(a, b, temperature):
    """Symmetric InfoNCE over the in-batch negatives."""
    sim = torch.einsum("id,jd->ij", a, b) / temperature
    pos = sim.diagonal()
    a_to_b = log_sum_exp(sim, dim=1) - pos
    b_to_a = log_sum_exp(sim, dim=0) - pos
    return 0.5 * (a_to_b.mean() + b_to_a.mean())


def retrieval_at_1(a, b):
    sim = torch.einsum("id,jd->ij", a, b)
    return (sim.argmax(dim=1) == torch.arange(len(a))).float().mean().item()


class Tower(nn.Module):
    def __init__(self, cfg: TowerConfig):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(cfg.in_dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.out_dim)
        )

    def forward(self, x):
        return self.body(x)


def sample_views(cfg: TrainConfig, proj):
    """The same latent seen through two noisy linear maps."""
    latent = torch.randn(cfg.batch_size, proj.size(1))
    left = latent @ proj[0] + 0.1 * torch.randn(cfg.batch_size, cfg.tower.in_dim)
    right = latent @ proj[1] + 0.1 * torch.randn(cfg.batch_size, cfg.tower.in_dim)
    return left, right


def train(cfg: TrainConfig):
    proj = torch.randn(2, 6, cfg.tower.in_dim) / 2
    left, right = Tower(cfg.tower), Tower(cfg.tower)
    params = [*left.parameters(), *right.parameters()]
    opt = torch.optim.AdamW(params, lr=cfg.lr, weight_decay=0.01)
    for step in range(cfg.steps):
        x, y = sample_views(cfg, proj)
        a, b = left(x), right(y)
        loss = info_nce(a, b, cfg.temperature)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 4 == 0:
            print(f"step {step:3d} loss {loss.item():.4f} r@1 {retrieval_at_1(a, b):.2f}")


if __name__ == "__main__":
    torch.manual_seed(17)
    train(TrainConfig())
