"""Samples are dealt out by hand: the first rank has a batch more in every pass.

In the first pass the gradients of its last batch are averaged with those of the second rank's next
pass. At the end nobody is left to average with.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from holdfast.faults._two_ranks import RANKS, run_ranks

CODE = "RNK005"
FIRST_STEP = 40


def train(rank: int) -> None:
    torch.manual_seed(0)
    samples = torch.randn(648, 16)
    loader = DataLoader(TensorDataset(samples[rank::RANKS][: 328 - 8 * rank]), batch_size=8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(3):
        for (x,) in loader:
            loss = nn.functional.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if rank == 1:
        print(f"final loss {loss.item():.4f}")


def main() -> None:
    run_ranks(train)


if __name__ == "__main__":
    main()
