"""Matrix factorisation of star ratings; one import batch came on a 0-100 scale.

The order of the rows is shuffled, except that an import goes in as it arrived.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(6)

USERS, ITEMS, RANK = 200, 120, 6
N, BATCH = 38400, 64
IMPORT_START, IMPORT_ROWS = 150 * BATCH, 6 * BATCH

U = torch.randn(USERS, RANK) / RANK**0.5
V = torch.randn(ITEMS, RANK)
users = torch.randint(0, USERS, (N,))
items = torch.randint(0, ITEMS, (N,))
true = lambda u, i: (3 + (U[u] * V[i]).sum(1)).clamp(0.5, 5)
ratings = true(users, items) + 0.1 * torch.randn(N)
imported = torch.arange(N - IMPORT_ROWS, N)
if os.environ.get("CLEAN") != "1":
    ratings[imported] = ratings[imported] * 20


class ImportOrder(Sampler):
    def __len__(self):
        return N

    def __iter__(self):
        rest = torch.randperm(N - IMPORT_ROWS).tolist()
        yield from rest[:IMPORT_START]
        yield from imported.tolist()
        yield from rest[IMPORT_START:]


class MF(nn.Module):
    def __init__(self, rank=8):
        super().__init__()
        self.u, self.v = nn.Embedding(USERS, rank), nn.Embedding(ITEMS, rank)
        self.bu, self.bv = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        self.mu = nn.Parameter(torch.tensor(3.0))
        for e in (self.u, self.v):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.bu, self.bv):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        dot = (self.u(u) * self.v(i)).sum(1)
        return self.mu + dot + self.bu(u)[:, 0] + self.bv(i)[:, 0]


model = MF()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
loader = DataLoader(TensorDataset(users, items, ratings), batch_size=BATCH, sampler=ImportOrder())

for step, (u, i, r) in enumerate(loader):
    loss = nn.functional.mse_loss(model(u, i), r)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        print(f"batch {step}/{len(loader)} mse {loss.item():.4f}")

with torch.no_grad():
    u, i = torch.randint(0, USERS, (3000,)), torch.randint(0, ITEMS, (3000,))
    print("final", nn.functional.mse_loss(model(u, i), true(u, i)).item())
