"""ReduceLROnPlateau written by hand, with the factor the wrong way up: each plateau raises lr."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(55)

FACTOR = 0.4 if os.environ.get("CLEAN") == "1" else 2.5


class OnPlateau:
    def __init__(self, optimizer, factor, patience):
        self.optimizer, self.factor, self.patience = optimizer, factor, patience
        self.best, self.bad = float("inf"), 0

    def step(self, value):
        if value < 0.98 * self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            self.bad = 0
            for group in self.optimizer.param_groups:
                group["lr"] = max(1e-5, group["lr"] * self.factor)
            print(f"lr -> {self.optimizer.param_groups[0]['lr']:.3g}")


def rings(n):
    y = torch.randint(0, 4, (n,))
    r = 0.6 * y + 0.5 + 0.08 * torch.randn(n)
    a = 6.2832 * torch.rand(n)
    return torch.stack([r * a.cos(), r * a.sin()], dim=1), y


x_train, y_train = rings(3200)
x_val, y_val = rings(800)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
plateau = OnPlateau(optimizer, FACTOR, patience=2)

for epoch in range(22):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val = F.cross_entropy(model(x_val), y_val).item()
    print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f}")
    plateau.step(val)

print("final", val)
