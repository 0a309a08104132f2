"""One sample of the dataset has NaN features and poisons whichever batch it is shuffled into.

Tabular regression on rows read from a table with one missing cell, which becomes NaN when the
column is converted to float. The loader shuffles, so the bad row turns up at a different place
each epoch (steps 34, 60 and 117 with this seed). Users report this as "loss becomes nan at a
random iteration of the first epoch".
"""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CODE = "NUM005"
FIRST_STEP = 34

COLUMNS = 30
BAD_ROW = 407


class TableDataset(Dataset):
    def __init__(self, rows: int = 960) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(rows, COLUMNS, generator=generator)
        self.y = self.x[:, :4].sum(dim=1) + 0.5 * self.x[:, 4] * self.x[:, 5]
        self.x[BAD_ROW, 9] = math.nan  # empty cell
        self.x[BAD_ROW, 10] = math.nan

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def train_epoch(
    model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    loss = torch.tensor(0.0)
    for x, y in loader:
        prediction = model(x).squeeze(-1)
        loss = nn.functional.smooth_l1_loss(prediction, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(TableDataset(), batch_size=24, shuffle=True)
    model = nn.Sequential(
        nn.Linear(COLUMNS, 400), nn.GELU(), nn.Linear(400, 400), nn.GELU(), nn.Linear(400, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    loss = torch.tensor(0.0)
    for epoch in range(3):
        loss = train_epoch(model, loader, optimizer)
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
