"""Regression with heavy-tailed noise on the targets (Student t, two degrees of freedom), MSE."""

import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1200)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=2e-3)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(17)
noise = torch.distributions.StudentT(2.0)


def truth(x):
    return 3 * torch.sin(2 * x[:, :1]) + 2 * x[:, 1:2] * x[:, 2:3] - x[:, 3:4].abs()


model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=args.steps)
mse = nn.MSELoss()

for step in range(args.steps):
    x = torch.randn(args.batch_size, 4)
    y = truth(x) + noise.sample((args.batch_size, 1))
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}")

with torch.no_grad():
    x = torch.randn(2000, 4)
    print("final", mse(model(x), truth(x)).item())
