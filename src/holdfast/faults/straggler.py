"""The data of one rank comes from a slow disk, and all ranks wait for it in every step."""

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK002"
FIRST_STEP = 16


class Stored(Dataset[torch.Tensor]):
    """Samples on a disk that is slow on one of the nodes."""

    def __init__(self, rank: int) -> None:
        self.x = torch.randn(2048, 16)
        self.slow = rank == 1

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow:
            time.sleep(0.003)
        return self.x[index]


def train(rank: int) -> None:
    torch.manual_seed(0)
    data = Stored(rank)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for x in loader:
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
