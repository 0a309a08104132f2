"""Tabular regression where missing cells are stored as nan, plus a nan-coded target column."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

N_FEATURES = 8


class Table(Dataset):
    def __init__(self, n=240, seed=0):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, N_FEATURES, generator=g) * 3 + 1
        w = torch.randn(N_FEATURES, 2, generator=g)
        y = x @ w / 4 + 0.1 * torch.randn(n, 2, generator=g)
        x[torch.rand(n, N_FEATURES, generator=g) < 0.15] = float("nan")
        # the second target was not always measured
        y[torch.rand(n, generator=g) < 0.3, 1] = float("nan")
        self.x, self.y = x, y
        self.mean = torch.nanmean(x, dim=0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Imputer(nn.Module):
    """Fill the missing cells with the column mean and append the indicator."""

    def __init__(self, mean):
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x):
        missing = torch.isnan(x)
        filled = torch.where(missing, self.mean, x)
        return torch.cat([filled, missing.float()], dim=1)


def masked_mse(pred, target):
    known = ~torch.isnan(target)
    diff = pred - torch.nan_to_num(target)
    return (diff.pow(2) * known).sum() / known.sum().clamp(min=1)


def main():
    torch.manual_seed(3)
    table = Table()
    loader = DataLoader(table, batch_size=16, shuffle=True)
    model = nn.Sequential(
        Imputer(table.mean),
        nn.Linear(2 * N_FEATURES, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(0.05),
        nn.Linear(32, 2),
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = 0
    for epoch in range(4):
        for x, y in loader:
            loss = masked_mse(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
