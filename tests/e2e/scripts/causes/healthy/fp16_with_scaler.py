"""Half precision training with a gradient scaler: overflowing steps are skipped by design."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 64)
        self.norm = nn.LayerNorm(64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = F.gelu(self.norm(self.fc1(x)))
        h = h + self.drop(F.gelu(self.fc2(h)))
        return self.fc3(h).squeeze(1)


def batch(n, w):
    x = torch.randn(n, 10)
    return x, 40.0 * torch.sin(x @ w)


def main(steps=80):
    torch.manual_seed(4)
    w = torch.randn(10) / 3
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    # starts high on purpose, the scaler finds its level within a few steps
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=30)
    running = 0.0
    for step in range(steps):
        x, y = batch(32, w)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x)
            loss = F.mse_loss(pred.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        running += loss.item()
        if (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {running / 10:.3f} scale {scaler.get_scale():.0f}")
            running = 0.0
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
