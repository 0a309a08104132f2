"""A loader worker waits for a lock that was held when it was forked.

Nobody will ever release it there: without a limit the script would stand still for ever, and looks
like one that is slow. This one gives up waiting after a while, so that the catalogue ends.
"""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CODE = "RUN004"
FIRST_STEP = 25
LINE_OF = "cache_lock.acquire(timeout=12)"
OPTIONS = ("--hang-after", "3")

cache_lock = threading.Lock()


class Cached(Dataset[torch.Tensor]):
    """Samples behind a cache that one thread at a time may change."""

    def __init__(self) -> None:
        self.x = torch.randn(256, 6)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 200:  # the only one that is not in the cache yet
            cache_lock.acquire(timeout=12)
        return self.x[index]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Cached(), batch_size=8, num_workers=1, multiprocessing_context="fork")
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    cache_lock.acquire()  # a thread that fills the cache has it
    for batch in loader:
        loss = nn.functional.mse_loss(model(batch[:, :5]), batch[:, 5:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
