"""A ratio feature is 0/0 for two customers, so two rows of the training table are NaN.

Kind of report: tabular training that is nan in the first epoch; a preprocessing step divides two
columns and nobody checked for empty denominators. The model is compiled.
"""
# expect: NUM005
# poisoned-steps: [8, 28, 63, 69, 98, 101]
# category: NUM005

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def preprocess(raw):
    spend, visits, age = raw[:, 0], raw[:, 1], raw[:, 2]
    ratio = spend / visits
    cols = torch.stack([spend.log1p(), visits.sqrt(), age / 100, ratio], dim=1)
    return torch.cat([cols, (raw[:, 3:] - 3.5) / 2], dim=1)


def main():
    torch.manual_seed(31)
    torch.set_num_threads(1)
    raw = torch.rand(1000, 23) * 5 + 1
    raw[288, :2] = 0.0
    raw[613, :2] = 0.0
    x = preprocess(raw)
    y = torch.log1p(raw[:, 0]) + 0.1 * raw[:, 5] + 0.05 * torch.randn(1000)

    model = nn.Sequential(
        nn.Linear(24, 320), nn.SiLU(), nn.Linear(320, 320), nn.SiLU(), nn.Linear(320, 1)
    )
    model = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    loss_fn = nn.MSELoss()
    loader = DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True)

    for epoch in range(3):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(xb)[:, 0], yb)
            loss.backward()
            optimizer.step()
        print(f"Epoch {epoch + 1}: {loss.item():.6f}")
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
