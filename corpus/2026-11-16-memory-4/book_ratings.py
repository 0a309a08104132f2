"""Factorisation model for book ratings; writes a sheet of predictions after every pass."""

import csv
import pathlib
import tempfile

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(17)

USERS, BOOKS, RATINGS = 3000, 1200, 120_000
out_dir = pathlib.Path(tempfile.mkdtemp())


def synth():
    u = torch.randint(0, USERS, (RATINGS,))
    b = torch.randint(0, BOOKS, (RATINGS,))
    taste, style = torch.randn(USERS, 4), torch.randn(BOOKS, 4)
    score = 3.0 + 0.6 * (taste[u] * style[b]).sum(1) + 0.2 * torch.randn(RATINGS)
    return u, b, score.clamp(1, 5)


class Factors(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.book = nn.Embedding(BOOKS, dim)
        self.tower = nn.Sequential(nn.Linear(3 * dim, 48), nn.ReLU(), nn.Linear(48, 1))
        self.bias = nn.Parameter(torch.tensor(3.0))

    def forward(self, u, b):
        p, q = self.user(u), self.book(b)
        return self.bias + self.tower(torch.cat([p, q, p * q], 1)).squeeze(1)


def note_predictions(epoch, users, books, predicted, actual, rows=[]):
    columns = zip(users.tolist(), books.tolist(), predicted.tolist(), actual.tolist())
    for user, book, p, a in columns:
        rows.append({"epoch": epoch, "user": user, "book": book, "pred": p, "rating": a})
    return rows


def write_sheet(epoch, rows):
    worst = sorted(rows[-RATINGS:], key=lambda r: -abs(r["pred"] - r["rating"]))[:200]
    with open(out_dir / f"worst_{epoch}.csv", "w", newline="") as fh:
        writer = csv.DictWriter(fh, fieldnames=list(worst[0]))
        writer.writeheader()
        writer.writerows(worst)


def batches(n, size):
    order = torch.randperm(n)
    yield from order.split(size)


users, books, ratings = synth()
model = Factors()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(8):
    squared = 0.0
    for idx in batches(RATINGS, 5000):
        u, b, y = users[idx], books[idx], ratings[idx]
        pred = model(u, b)
        loss = nn.functional.mse_loss(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows = note_predictions(epoch, u, b, pred.detach(), y)
        squared += loss.item() * len(idx)
    write_sheet(epoch, rows)
    print(f"epoch {epoch} rmse {(squared / RATINGS) ** 0.5:.4f}")
