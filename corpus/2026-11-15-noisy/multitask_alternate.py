"""Three tasks share a trunk and take turns; their losses are five orders of magnitude apart."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)

DIM = 12
W_cls = torch.randn(DIM, 5)
W_reg = torch.randn(DIM, 1)
W_low = torch.randn(4, DIM) / 2


def inputs(n):
    return torch.randn(n, 4) @ W_low + 0.05 * torch.randn(n, DIM)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.cls = nn.Linear(64, 5)
        self.reg = nn.Linear(64, 1)
        self.rec = nn.Linear(64, DIM)

    def forward(self, x, task):
        return getattr(self, task)(self.trunk(x))


def task_loss(model, task, x, clean=False):
    out = model(x, task)
    if task == "cls":
        logits = x @ W_cls
        if not clean:
            logits = logits + 0.1 * torch.randn_like(logits)
        return F.cross_entropy(out, logits.argmax(1))
    if task == "reg":
        watts = 300 * (x @ W_reg) + 60 * (x[:, :1] ** 2)
        if not clean:
            watts = watts + 20 * torch.randn_like(watts)
        return F.mse_loss(100 * out, watts)
    return 0.1 * F.mse_loss(out, x)


model = Shared()
optimizer = torch.optim.Adam(
    [
        {"params": model.trunk.parameters(), "lr": 3e-3},
        {"params": model.cls.parameters()},
        {"params": model.reg.parameters()},
        {"params": model.rec.parameters(), "lr": 1e-2},
    ],
    lr=5e-3,
)
tasks = itertools.cycle(["cls", "reg", "rec"])
seen = {"cls": 0.0, "reg": 0.0, "rec": 0.0}

for step in range(1350):
    task = next(tasks)
    optimizer.zero_grad()
    loss = task_loss(model, task, inputs(32))
    loss.backward()
    optimizer.step()
    seen[task] = loss.item()
    if step % 150 == 2:
        print(step, " ".join(f"{k} {v:.5g}" for k, v in seen.items()))

with torch.no_grad():
    x = inputs(1000)
    parts = {t: task_loss(model, t, x, clean=True).item() for t in seen}
print(parts)
print("final", parts["cls"])
