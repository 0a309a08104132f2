# Second-order MAML for tide gauges: each station has its own mix of harmonics,
# and from a few readings we want to predict the rest of the day.
import math

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(11)
torch.set_num_threads(1)

META_STEPS = 280
TASKS_PER_STEP = 2
SHOTS, QUERIES = 16, 48
INNER_LR = 0.05


def sample_station(generator):
    amp = 0.5 + 1.5 * torch.rand(3, generator=generator)
    phase = 2 * math.pi * torch.rand(3, generator=generator)
    freq = torch.tensor([1.0, 1.93, 2.0]) + 0.05 * torch.randn(3, generator=generator)
    return amp, phase, freq


def readings(station, n, generator):
    amp, phase, freq = station
    t = 2 * math.pi * torch.rand(n, 1, generator=generator)
    level = (amp * torch.sin(freq * t + phase)).sum(1, keepdim=True)
    return t / math.pi - 1, level + 0.02 * torch.randn(n, 1, generator=generator)


class TideNet(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.register_buffer("bands", torch.arange(1, 9).float() * math.pi / 2)
        self.net = nn.Sequential(
            nn.Linear(16, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, t):
        ang = t * self.bands
        return self.net(torch.cat([ang.sin(), ang.cos()], dim=1))


model = TideNet()
mse = nn.MSELoss()
meta_opt = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(meta_opt, META_STEPS)
gen = torch.Generator().manual_seed(5)


def adapt(params, x, y, steps, second_order):
    fast = params
    for _ in range(steps):
        loss = mse(functional_call(model, fast, (x,)), y)
        grads = torch.autograd.grad(loss, tuple(fast.values()), create_graph=second_order)
        fast = {k: w - INNER_LR * g for (k, w), g in zip(fast.items(), grads)}
    return fast


def evaluate(n_stations=10):
    g = torch.Generator().manual_seed(99)
    errors = []
    for _ in range(n_stations):
        station = sample_station(g)
        xs, ys = readings(station, SHOTS, g)
        xq, yq = readings(station, 200, g)
        start = {k: v.detach().requires_grad_() for k, v in model.named_parameters()}
        fast = adapt(start, xs, ys, steps=5, second_order=False)
        with torch.no_grad():
            errors.append(mse(functional_call(model, fast, (xq,)), yq).item())
    return sum(errors) / len(errors)


history = []
print(f"before meta training: query mse {evaluate():.3f}")
for step in range(1, META_STEPS + 1):
    # one inner step first, then more once the initialisation is reasonable
    inner_steps = 1 if step <= 60 else (2 if step <= 120 else 3)
    meta_opt.zero_grad()
    total = 0.0
    for _ in range(TASKS_PER_STEP):
        station = sample_station(gen)
        xs, ys = readings(station, SHOTS, gen)
        xq, yq = readings(station, QUERIES, gen)
        fast = adapt(dict(model.named_parameters()), xs, ys, inner_steps, second_order=True)
        loss = mse(functional_call(model, fast, (xq,)), yq) / TASKS_PER_STEP
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    meta_opt.step()
    schedule.step()
    history.append(total)
    if step % 70 == 0:
        recent = sum(history[-70:]) / 70
        print(f"step {step:4d}  inner {inner_steps}  train {recent:.3f}  held-out {evaluate():.3f}")

print(f"best meta loss {min(history):.4f} at step {history.index(min(history)) + 1}")
