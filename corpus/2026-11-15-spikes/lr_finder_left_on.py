"""The lr range test was left in: the rate grows a little with each step and never stops."""

import os

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

torch.set_num_threads(1)
torch.manual_seed(70)

STEPS = 800
GAMMA = 0.997 if os.environ.get("CLEAN") == "1" else 1.012


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 5))
        self.dec = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 24))

    def forward(self, x):
        return self.dec(self.enc(x))


mix = torch.randn(5, 24) / 2


def sample(n):
    return torch.sin(torch.randn(n, 5) @ mix) + 0.02 * torch.randn(n, 24)


model = Autoencoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = ExponentialLR(optimizer, gamma=GAMMA)
loss_fn = nn.MSELoss()

for step in range(STEPS):
    x = sample(64)
    loss = loss_fn(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 50 == 0:
        print(f"step {step} lr {scheduler.get_last_lr()[0]:.2e} loss {loss.item():.5f}")

with torch.no_grad():
    x = sample(1000)
    print("final", loss_fn(model(x), x).item())
