"""A second head takes part in no loss; DDP was told to look for such parameters in every step."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.faults._two_ranks import run_ranks

CODE = "RNK003"
FIRST_STEP = 0


class TwoHeads(nn.Module):
    """A body with two heads, one of which was meant for another task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)
        self.extra = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    loss = torch.tensor(0.0)
    for _ in range(200):
        x = torch.randn(16, 16)
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
