#!/usr/bin/env python
"""Density model of machine sensor readings (affine coupling flow, Student-t base), used for anomaly scores."""
import argparse
import statistics

import torch
from torch import nn
from torch.distributions import StudentT


def simulate_sensors(n, dim, gen):
    """Strongly correlated channels driven by few latent loads, with an occasional shock."""
    load = torch.randn(n, 3, generator=gen)
    mix = torch.randn(3, dim, generator=torch.Generator().manual_seed(99))
    x = torch.tanh(load @ mix) + 0.03 * torch.randn(n, dim, generator=gen)
    shock = torch.rand(n, 1, generator=gen) < 0.01
    burst = torch.distributions.Cauchy(0.0, 0.05).sample((n, dim)).clamp(-8, 8)
    return x + shock * burst


class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        mask = torch.zeros(dim)
        mask[flip::2] = 1
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 2 * dim))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        kept = x * self.mask
        log_s, t = self.net(kept).chunk(2, dim=-1)
        log_s = 2.5 * torch.tanh(log_s / 2.5) * (1 - self.mask)
        t = t * (1 - self.mask)
        return kept + (1 - self.mask) * (x * log_s.exp() + t), log_s.sum(-1)


class SensorFlow(nn.Module):
    def __init__(self, dim, hidden=96, depth=4):
        super().__init__()
        self.log_gain = nn.Parameter(torch.zeros(dim))
        self.layers = nn.ModuleList(Coupling(dim, hidden, i % 2) for i in range(depth))
        self.base = StudentT(df=6.0)

    def log_prob(self, x):
        x = x * self.log_gain.exp()
        total = self.log_gain.sum()
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return self.base.log_prob(x).sum(-1) + total


@torch.inference_mode()
def validate(model, data):
    model.eval()
    score = -model.log_prob(data).mean().item()
    model.train()
    return score


def run(args):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    train = simulate_sensors(20000, args.channels, gen)
    valid = simulate_sensors(600, args.channels, gen)
    model = SensorFlow(args.channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    # SGDR: cycles of 60, 120, 240 steps
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=60, T_mult=2, eta_min=1e-5)
    history = []
    for step in range(args.steps):
        batch = train[torch.randint(0, len(train), (args.batch,), generator=gen)]
        nll = -model.log_prob(batch).mean()
        optimizer.zero_grad(set_to_none=True)
        nll.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        schedule.step()
        history.append(nll.item())
        if (step + 1) % 30 == 0:
            print(f"step {step + 1:4d} lr {schedule.get_last_lr()[0]:.5f} "
                  f"nll {statistics.fmean(history[-30:]):8.3f} valid {validate(model, valid):8.3f}")
    odd = valid[:200] + 0.4 * torch.randn(200, args.channels)
    print(f"normal {validate(model, valid[:200]):.2f}  disturbed {validate(model, odd):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=14)
    parser.add_argument("--steps", type=int, default=420)
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=17)
    run(parser.parse_args())
