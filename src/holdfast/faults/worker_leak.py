"""The dataset remembers every sample it has handed out, in each of its workers.

Users report this as "RAM grows during the epoch and is free again after it", or as a worker that
"is killed by signal: Killed".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CODE = "MEM006"
FIRST_STEP = 0
LINE_OF = "self.seen.append(x)"


class Signals(Dataset):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __len__(self) -> int:
        return 2400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((8192,), index / 2400)
        self.seen.append(x)
        return x[:64], x[:1].sin()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for x, y in DataLoader(Signals(), batch_size=24, num_workers=2):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
