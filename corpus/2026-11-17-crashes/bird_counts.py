"""Poisson regression of bird counts with worker processes loading the rows."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

from birddata.dataset import BirdCounts, observations, site_table


class CountModel(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def make_loader(rows, sites, args, shuffle):
    generator = torch.Generator().manual_seed(args.seed)
    return DataLoader(
        BirdCounts(rows, sites),
        batch_size=args.batch_size,
        shuffle=shuffle,
        generator=generator,
        num_workers=args.workers,
    )


@torch.no_grad()
def deviance(model, loader):
    model.eval()
    total = 0.0
    for x, birds in loader:
        total += nn.functional.poisson_nll_loss(model(x), birds, reduction="sum").item()
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seed", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    sites = site_table()
    train = make_loader(observations(1000, seed=1), sites, args, shuffle=True)
    val = make_loader(observations(200, seed=2), sites, args, shuffle=False)
    model = CountModel(5, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        model.train()
        for x, birds in train:
            loss = nn.functional.poisson_nll_loss(model(x), birds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: validation deviance {deviance(model, val):.4f}")


if __name__ == "__main__":
    main()
