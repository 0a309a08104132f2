"""Contrastive training on pairs where a few pairs are the same file twice: gradient is NaN.

Kind of report: siamese network whose loss looks fine until a duplicate pair has distance exactly
zero; the derivative of the square root is infinite there. The loss lives in a helper module.
"""
# expect: NUM002
# poisoned-steps: [13, 40, 61, 88]
# category: NUM002

from dataclasses import dataclass

import torch
from helpers.metric_losses import ContrastiveLoss
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    epochs: int = 2
    batch_size: int = 32
    lr: float = 1e-3
    dim: int = 64
    seed: int = 3


class PairDataset(Dataset):
    def __init__(self, size):
        self.left = torch.randn(size, 100)
        self.same = (torch.arange(size) % 2 == 0).float()
        noise = 0.2 * torch.randn(size, 100)
        other = torch.randn(size, 100)
        self.right = torch.where(self.same[:, None] > 0, self.left + noise, other)
        for duplicate in (13 * 32 + 4, 40 * 32 + 10):
            self.right[duplicate] = self.left[duplicate]

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        return self.left[i], self.right[i], self.same[i]


class Trainer:
    def __init__(self, config):
        self.config = config
        torch.manual_seed(config.seed)
        torch.set_num_threads(1)
        self.data = PairDataset(48 * config.batch_size)
        self.model = nn.Sequential(
            nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)
        )
        self.criterion = ContrastiveLoss(margin=2.0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.history = []

    def training_step(self, batch):
        left, right, same = batch
        return self.criterion(self.model(left), self.model(right), same)

    def run_epoch(self, epoch):
        loader = DataLoader(self.data, batch_size=self.config.batch_size)
        for i, batch in enumerate(loader):
            loss = self.training_step(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.history.append(loss.item())
            if i % 12 == 0:
                print(f"[{epoch}:{i:03d}] loss {self.history[-1]:.4f}")

    def fit(self):
        for epoch in range(self.config.epochs):
            self.run_epoch(epoch)
        return self.history[-1]


if __name__ == "__main__":
    final = Trainer(Config()).fit()
    print(f"final loss {final:.4f}")
