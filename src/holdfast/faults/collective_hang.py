"""One rank waits for a file that nobody writes, and the other one for it in backward.

Without a limit both would stand still for ever. This one gives up after a while, so that the
catalogue ends.
"""

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK007"
FIRST_STEP = 30
LINE_OF = "time.sleep(30)"
OPTIONS = ("--hang-after", "6")


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    loss = torch.tensor(0.0)
    for step in range(60):
        x = torch.randn(16, 16)
        if step == 30 and rank == 1:
            time.sleep(30)  # for a file that never comes
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"final loss {loss.item():.4f}")


def main() -> None:
    run_ranks(train)


if __name__ == "__main__":
    main()
