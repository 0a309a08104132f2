"""One rank clamps its weights between two steps, and the others do not.

DDP averages gradients, never weights: from there on each rank trains a model of its own.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK001"
FIRST_STEP = 128


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    loss = torch.tensor(0.0)
    for step in range(200):
        x = torch.randn(16, 16)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 100 and rank == 1:  # meant for all ranks
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.2, 0.2)
    if rank == 0:
        print(f"final loss {loss.item():.4f}")


def main() -> None:
    run_ranks(train)


if __name__ == "__main__":
    main()
