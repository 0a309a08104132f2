"""Two-tower recommender with a drift check on the user vectors."""

from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)

USERS, ITEMS, TASTE = 900, 240, 8
WINDOW = 10
loss_window = deque(maxlen=50)
user_window = deque()


class ClickStream(IterableDataset):
    def __init__(self, clicks, seed):
        self.clicks, self.seed = clicks, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        user_taste = torch.randint(0, TASTE, (USERS,), generator=g)
        by_taste = torch.arange(ITEMS).view(TASTE, -1)
        for _ in range(self.clicks):
            users = torch.randint(0, USERS, (640,), generator=g)
            column = torch.randint(0, by_taste.shape[1], (640,), generator=g)
            yield users, by_taste[user_taste[users], column]


class Tower(nn.Module):
    def __init__(self, count, dim=160):
        super().__init__()
        self.table = nn.Embedding(count, 32)
        self.proj = nn.Linear(32, dim)

    def forward(self, ids):
        return F.normalize(self.proj(self.table(ids)), dim=1)


def drift():
    rows = list(user_window)
    if len(rows) < 2 * WINDOW:
        return 0.0
    older = torch.cat(rows[-2 * WINDOW : -WINDOW]).mean(0)
    newer = torch.cat(rows[-WINDOW:]).mean(0)
    return (newer - older).norm().item()


def run(batches=200):
    torch.manual_seed(23)
    user_tower, item_tower = Tower(USERS), Tower(ITEMS)
    params = [*user_tower.parameters(), *item_tower.parameters()]
    optimizer = torch.optim.Adam(params, lr=2e-2)
    loader = DataLoader(ClickStream(batches, seed=23), batch_size=None)
    for n, (users, items) in enumerate(loader, start=1):
        u, v = user_tower(users), item_tower(items)
        scores = u @ v.t() / 0.1
        loss = F.cross_entropy(scores, torch.arange(len(users)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_window.append(loss.item())
        user_window.append(u.detach())
        if n % 40 == 0:
            mean = sum(loss_window) / len(loss_window)
            print(f"batch {n}: loss {mean:.3f} drift {drift():.4f}")


if __name__ == "__main__":
    run()
