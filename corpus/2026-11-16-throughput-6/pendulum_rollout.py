"""Learn the vector field of a damped driven pendulum from rollouts of varying horizon."""
import math

import numpy as np
import torch
import torch._dynamo
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 64

DT = 0.05
DAMPING, DRIVE = 0.15, 0.6


def true_field(t, y):
    theta, omega = y[..., 0], y[..., 1]
    return np.stack([omega, -np.sin(theta) - DAMPING * omega + DRIVE * np.cos(0.7 * t)], -1)


def simulate(y0, n):
    ys, y, sub = [y0], y0, 5
    for k in range(n):
        for j in range(sub):
            h, t = DT / sub, k * DT + j * DT / sub
            k1 = true_field(t, y)
            k2 = true_field(t + h / 2, y + h / 2 * k1)
            y = y + h * k2
        ys.append(y)
    return torch.tensor(np.stack(ys, 1), dtype=torch.float32)


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, t, y):
        phase = torch.full_like(y[:, :1], 0.7 * t)
        inp = torch.cat([torch.sin(y[:, :1]), torch.cos(y[:, :1]), y[:, 1:], torch.cos(phase), torch.sin(phase)], 1)
        return self.net(inp)


class Rollout(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Field()

    def forward(self, y0, horizon):
        y, out = y0, []
        for k in range(horizon):
            y = y + DT * self.field(k * DT, y)
            out.append(y)
        return torch.stack(out, 1)


rng = np.random.default_rng(0)
start = np.stack([rng.uniform(-math.pi, math.pi, 512), rng.normal(0, 1, 512)], -1)
paths = simulate(start, 24)

model = Rollout()
rollout = torch.compile(model, backend="eager")
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, 100, gamma=0.5)

ema = None
for step in range(1, 221):
    horizon = int(min(1 + rng.geometric(0.25), 15))
    pick = torch.randint(0, 512, (64,))
    target = paths[pick, 1:horizon + 1]
    pred = rollout(paths[pick, 0], horizon)
    loss = (pred - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
    if step % 40 == 0:
        print(f"step {step:4d}  horizon {horizon:2d}  rollout mse {ema:.5f}")
