"""Gated feed-forward regressor trained in half precision (saves memory on the laptop).

usage: amp_gated_ffn.py [--epochs N] [--lr LR] [--full-precision]
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GatedBlock(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.wi_0 = nn.Linear(dim, inner, bias=False)
        self.wi_1 = nn.Linear(dim, inner, bias=False)
        self.wo = nn.Linear(inner, dim, bias=False)

    def forward(self, x):
        gate = F.gelu(self.wi_0(x))
        value = self.wi_1(x)
        hidden = gate * value
        return x + self.wo(hidden)


class Regressor(nn.Module):
    def __init__(self, n_features, dim=32, inner=64):
        super().__init__()
        self.inp = nn.Linear(n_features, dim)
        self.block = GatedBlock(dim, inner)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))

    def forward(self, x):
        return self.out(self.block(self.inp(x))).squeeze(-1)


def load_orders(n=384, n_features=6):
    """Order features -> delivery time. Amounts are in euro, row 118 was exported in cents."""
    g = torch.Generator().manual_seed(8)
    x = torch.rand(n, n_features, generator=g) * 10.0
    y = 0.3 * x[:, 0] + torch.sin(x[:, 1]) - 0.1 * x[:, 2] + 0.1 * torch.randn(n, generator=g)
    x[118] *= 100.0
    return TensorDataset(x, y)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--full-precision", action="store_true")
    return p.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(
        load_orders(),
        batch_size=args.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(args.seed),
    )
    model = Regressor(n_features=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)

    step = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.float16, enabled=not args.full_precision):
                pred = model(x)
            loss = F.smooth_l1_loss(pred.float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            warmup.step()
            if step % 4 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
