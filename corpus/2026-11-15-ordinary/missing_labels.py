"""Multi-task regression where unmeasured targets are NaN and masked out of the loss; healthy.

The usual way to store assay tables: every sample has some targets missing. The NaNs are in the
batch on purpose and never reach loss, gradients or weights.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_assays(n=1200, tasks=6):
    x = torch.randn(n, 40)
    y = torch.tanh(x @ torch.randn(40, tasks) / 4)
    y[torch.rand(n, tasks) < 0.4] = float("nan")
    return TensorDataset(x, y)


def masked_mse(prediction, target):
    known = ~torch.isnan(target)
    return ((prediction[known] - target[known]) ** 2).mean()


def main():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    loader = DataLoader(make_assays(), batch_size=30, shuffle=True)
    model = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU())
    heads = nn.Linear(300, 6)
    optimizer = torch.optim.Adam([*model.parameters(), *heads.parameters()], lr=1e-3)
    for epoch in range(3):
        for x, y in loader:
            loss = masked_mse(heads(model(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
