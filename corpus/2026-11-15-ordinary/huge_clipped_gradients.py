"""Energies in raw erg give gradients of about 1e20 that are clipped by value; finite throughout."""

import torch
import torch.nn.functional as F
from torch import nn, optim

ERG = 1e20


def build():
    return nn.Sequential(
        nn.Linear(12, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1)
    )


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    model = build()
    optimizer = optim.SGD(model.parameters(), lr=2e-3)
    largest = 0.0
    for step in range(100):
        state = torch.randn(48, 12)
        energy = 0.5 * state.pow(2).mean(dim=1, keepdim=True)
        loss = ERG * F.l1_loss(model(state), energy)
        optimizer.zero_grad()
        loss.backward()
        largest = max(largest, max(p.grad.abs().max().item() for p in model.parameters()))
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4e}")
    print(f"largest gradient entry {largest:.2e}")
    print(f"final loss {loss.item():.4e}")


if __name__ == "__main__":
    main()
