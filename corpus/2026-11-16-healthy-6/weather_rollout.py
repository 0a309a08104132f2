"""Neural stepper for a 2-D advected tracer; the training rollout gets longer in stages."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(40)

GRID = 16
STAGES = [(1, 70, 2e-3), (2, 45, 1e-3), (4, 24, 5e-4), (6, 22, 2e-4)]


class Solver:
    """Semi-Lagrangian reference simulation on a periodic grid."""

    def __init__(self, n):
        yy, xx = torch.meshgrid(torch.arange(n).float(), torch.arange(n).float(), indexing="ij")
        psi_x, psi_y = 2 * math.pi * xx / n, 2 * math.pi * yy / n
        u = 0.8 + 0.6 * torch.sin(psi_y)
        v = 0.5 * torch.sin(psi_x)
        gx = ((xx - u) % n) / (n - 1) * 2 - 1
        gy = ((yy - v) % n) / (n - 1) * 2 - 1
        self.grid = torch.stack([gx, gy], -1)[None]

    def step(self, q):
        q = F.grid_sample(q, self.grid.expand(len(q), -1, -1, -1), align_corners=True)
        return 0.995 * q

    def trajectories(self, count, length):
        noise = torch.randn(count, 1, GRID, GRID)
        q = F.avg_pool2d(F.pad(noise, (3, 3, 3, 3), mode="circular"), 7, stride=1) * 6
        frames = [q]
        for _ in range(length - 1):
            frames.append(self.step(frames[-1]))
        return torch.stack(frames, 1)


class PeriodicBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1, padding_mode="circular")
        self.b = nn.Conv2d(c, c, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        return x + self.b(F.gelu(self.a(x)))


class Stepper(nn.Module):
    def __init__(self, c=10, depth=2):
        super().__init__()
        self.lift = nn.Conv2d(1, c, 1)
        self.pos = nn.Parameter(torch.zeros(1, c, GRID, GRID))
        self.blocks = nn.ModuleList(PeriodicBlock(c) for _ in range(depth))
        self.proj = nn.Conv2d(c, 1, 1)

    def forward(self, q):
        h = self.lift(q) + self.pos
        for block in self.blocks:
            h = block(h)
        return q + self.proj(h)


with torch.no_grad():
    data = Solver(GRID).trajectories(40, 20)
train, held_out = data[:36], data[36:]
model = Stepper()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
curve = []


@torch.no_grad()
def forecast_error(length):
    q = held_out[:, 0]
    for _ in range(length):
        q = model(q)
    return F.mse_loss(q, held_out[:, length]).sqrt().item()


for rollout, updates, lr in STAGES:
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(updates):
        traj = torch.randint(0, len(train), (4,))
        t0 = torch.randint(0, train.shape[1] - rollout, (4,))
        q, loss = train[traj, t0], 0.0
        for k in range(1, rollout + 1):
            q = checkpoint(model, q, use_reentrant=False) if rollout > 2 else model(q)
            loss = loss + F.mse_loss(q, train[traj, t0 + k]) / rollout
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append(loss.item())
    print(f"rollout {rollout}: train {sum(curve[-20:]) / 20:.5f}  rmse@1 {forecast_error(1):.4f}  rmse@12 {forecast_error(12):.4f}")
