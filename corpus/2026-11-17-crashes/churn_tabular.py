"""Customer churn from tabular features, MLP with batch normalisation."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def synth_customers(rows, seed):
    rng = np.random.default_rng(seed)
    tenure = rng.gamma(2.0, 12.0, rows)
    charges = rng.normal(60.0, 20.0, rows)
    calls = rng.poisson(2.0, rows)
    contract = rng.integers(0, 3, rows)
    score = 0.6 * calls - 0.05 * tenure + 0.02 * charges - 0.7 * contract
    churn = (score + rng.normal(0, 0.5, rows) > 0.2).astype(np.float32)
    onehot = np.eye(3)[contract]
    table = np.column_stack([tenure, charges, calls, onehot]).astype(np.float32)
    return table, churn


def standardise(train, other):
    mean, std = train.mean(0), train.std(0) + 1e-6
    return (train - mean) / std, (other - mean) / std


class ChurnNet(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(1)


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    losses = []
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return ((model(x) > 0).float() == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1282)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    table, churn = synth_customers(args.rows, seed=4)
    cut = int(0.8 * args.rows)
    train_x, test_x = standardise(table[:cut], table[cut:])
    train_set = TensorDataset(torch.from_numpy(train_x), torch.from_numpy(churn[:cut]))
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_x, test_y = torch.from_numpy(test_x), torch.from_numpy(churn[cut:])

    model = ChurnNet(table.shape[1], args.width)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for epoch in range(args.epochs):
        loss = train_one_epoch(model, loader, criterion, optimizer)
        print(f"epoch {epoch} loss {loss:.4f} acc {accuracy(model, test_x, test_y):.3f}")


if __name__ == "__main__":
    main()
