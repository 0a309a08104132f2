"""One rank is killed in the middle of a step; the error that is printed is that of the other."""

import os
import signal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK008"
FIRST_STEP = 30


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    for step in range(60):
        x = torch.randn(16, 16)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        if step == 30 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does for lack of memory
        loss.backward()
        optimizer.step()


def main() -> None:
    run_ranks(train)


if __name__ == "__main__":
    main()
