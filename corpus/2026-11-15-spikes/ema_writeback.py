"""Keeps an average of the weights and, near the end, goes on from the average.

The average is bias-corrected as in Adam, but the counter was reset, so the correction is applied
to an average that needs none and the weights come back several times too large.
"""

import os

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(19)


class Ema:
    def __init__(self, model, decay=0.8):
        self.decay = decay
        self.n = 0
        self.shadow = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}

    def update(self, model):
        self.n += 1
        for k, v in model.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)

    def write_back(self, model):
        fix = 1 - self.decay**self.n
        model.load_state_dict({k: v / fix for k, v in self.shadow.items()})


def draw(n):
    x = torch.rand(n, 5) * 2 - 1
    flow = torch.sin(3 * x[:, 0]) * x[:, 1] + x[:, 2].clamp(min=0) - 0.5 * x[:, 3] * x[:, 4]
    return x, flow[:, None] + 0.03 * torch.randn(n, 1)


model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 150, gamma=0.2)
criterion = nn.MSELoss()
ema = Ema(model)

for step in range(500):
    if step == 310:
        if os.environ.get("CLEAN") != "1":
            ema.n = 1
        ema.write_back(model)
    x, y = draw(48)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    ema.update(model)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

torch.manual_seed(20)
x, y = draw(3000)
with torch.no_grad():
    print("final", criterion(model(x), y).item())
