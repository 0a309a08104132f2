"""A transform in pure Python makes every batch late.

A classifier of short signals whose dataset smooths each of them in a Python loop, sample by
sample, in the main process. Users report this as "GPU utilisation is 10 %, training is slow".
"""

import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CODE = "TPT001"
FIRST_STEP = 0
LINE_OF = "smooth.append(math.tanh(0.5 * value + 0.3 * last))"


class Signals(Dataset):
    def __init__(self, count: int = 800, length: int = 600) -> None:
        rng = random.Random(3)
        self.rows = [[rng.gauss(0, 1) for _ in range(length)] for _ in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        smooth, last = [], 0.0
        for value in self.rows[index]:
            smooth.append(math.tanh(0.5 * value + 0.3 * last))
            last = value
        return torch.tensor(smooth[:64]), int(sum(self.rows[index]) > 0)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Signals(), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for epoch in range(4):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
