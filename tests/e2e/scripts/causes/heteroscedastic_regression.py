"""Regression with predicted noise level (mean and variance heads), bf16 backbone."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Hyper:
    batch: int = 64
    steps: int = 80
    hidden: int = 32
    lr: float = 4e-3
    warmup: int = 5
    seed: int = 3


class MeanVariance(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.mean = nn.Linear(hidden, 1)
        self.var = nn.Linear(hidden, 1)
        nn.init.constant_(self.var.bias, 1.0)

    def forward(self, x):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            h = self.backbone(x)
        h = h.float()
        # a variance cannot be negative
        return self.mean(h).squeeze(-1), F.relu(self.var(h)).squeeze(-1)


def gaussian_nll(mean, var, y):
    return 0.5 * (torch.log(var) + (y - mean) ** 2 / var).mean()


def draw(n):
    x = torch.rand(n, 1) * 4 - 2
    noise = 0.02 + 0.1 * x.squeeze(1).abs()
    y = 0.3 * torch.sin(2 * x.squeeze(1)) + noise * torch.randn(n)
    return x, y


def lr_factor(warmup, steps):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.1, 1 - (step - warmup) / (steps - warmup))

    return factor


def main():
    hp = Hyper()
    torch.manual_seed(hp.seed)
    model = MeanVariance(hp.hidden)
    opt = torch.optim.Adam(model.parameters(), lr=hp.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_factor(hp.warmup, hp.steps))

    for step in range(hp.steps):
        x, y = draw(hp.batch)
        mean, var = model(x)
        loss = gaussian_nll(mean, var, y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        sched.step()
        if step % 5 == 0:
            mse = F.mse_loss(mean.detach(), y).item()
            print(f"step {step:3d} nll {loss.item():8.4f} mse {mse:.4f}")


if __name__ == "__main__":
    main()
