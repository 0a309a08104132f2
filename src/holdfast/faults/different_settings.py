"""The warm-up of the learning rate is skipped on one rank, which was told to resume."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK006"
FIRST_STEP = 0


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    resumed = rank == 1  # only this one found a checkpoint
    start = 1.0 if resumed else 0.01
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=20)
    torch.manual_seed(1 + rank)
    loss = torch.tensor(0.0)
    for _ in range(40):
        x = torch.randn(16, 16)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
    if rank == 0:
        print(f"final loss {loss.item():.4f}")


def main() -> None:
    run_ranks(train)


if __name__ == "__main__":
    main()
