"""Weekly sales of several shops, forecast with a convolution over time."""
import logging

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("sales")

SHOPS = 6
PAST = 26


def weekly_sales(weeks, seed):
    rng = np.random.default_rng(seed)
    time = np.arange(weeks)[:, None]
    season = np.sin(2 * np.pi * (time + 5 * np.arange(SHOPS)) / 52)
    level = rng.uniform(1.0, 3.0, SHOPS)
    return (level + season + rng.normal(0, 0.1, (weeks, SHOPS))).astype(np.float32)


class Sales(Dataset):
    def __init__(self, table):
        self.table = torch.from_numpy(table)

    def __len__(self):
        return len(self.table) - PAST

    def __getitem__(self, week):
        return self.table[week : week + PAST], self.table[week + PAST]


class SalesNet(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.conv = nn.Conv1d(SHOPS, channels, 5, padding=2)
        self.mix = nn.Linear(PAST * channels, SHOPS)

    def forward(self, past):
        h = torch.relu(self.conv(past.transpose(1, 2)))
        h = h.transpose(1, 2)
        return self.mix(h.view(h.size(0), -1))


def train_epoch(model, loader, optimizer):
    model.train()
    total, used, skipped = 0.0, 0, 0
    for past, target in loader:
        try:
            loss = nn.functional.l1_loss(model(past), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except RuntimeError:
            skipped += 1
            continue
        total += loss.item()
        used += 1
    return total / max(used, 1), skipped


def main():
    torch.manual_seed(40)
    loader = DataLoader(Sales(weekly_sales(426, seed=3)), batch_size=20, shuffle=True)
    model = SalesNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    for epoch in range(5):
        loss, skipped = train_epoch(model, loader, optimizer)
        scheduler.step()
        log.info("epoch %d loss %.4f (%d batches skipped)", epoch, loss, skipped)
    log.info("finished")


if __name__ == "__main__":
    main()
