"""The loader has no DistributedSampler: both ranks shuffle with the same seed."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK004"
FIRST_STEP = 0


def train(rank: int) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 16))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(2):
        for (x,) in loader:
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
