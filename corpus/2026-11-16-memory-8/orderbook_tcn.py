"""Predicts the next mid-price move from a simulated limit order book, learning online from the stream."""
import itertools
import time

import numpy as np
import torch
import torch.nn as nn

LEVELS = 32
WINDOW = 32
BATCH = 96
TICKS = 300
REPORT = 60


def book_stream(seed):
    """Endless minibatches of (window of book snapshots, direction of the next move), from 96 instruments."""
    rng = np.random.default_rng(seed)
    drift = rng.normal(0, 1, BATCH).astype(np.float32)
    shape = np.exp(-np.arange(LEVELS, dtype=np.float32) / 6)
    while True:
        noise = rng.standard_normal((BATCH, LEVELS, WINDOW), dtype=np.float32)
        drift = 0.97 * drift + 0.25 * rng.standard_normal(BATCH, dtype=np.float32)
        trend = np.linspace(0.2, 1.0, WINDOW, dtype=np.float32)
        book = noise * 0.8 + drift[:, None, None] * shape[None, :, None] * trend[None, None]
        move = (drift + 0.3 * rng.standard_normal(BATCH, dtype=np.float32) > 0).astype(np.float32)
        yield book, move


class CausalBlock(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        y = self.conv(nn.functional.pad(x, (self.pad, 0)))
        return torch.relu(self.norm(y)) + self.skip(x)


class TCN(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.Sequential(CausalBlock(LEVELS, width, 1), CausalBlock(width, width, 2))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(x)[:, :, -1]).squeeze(-1)


class Normaliser:
    """Mean and scale of the book, estimated on the head of the stream that the model is going to see."""

    def __init__(self, stream, batches=12):
        head = [book for book, _ in itertools.islice(stream, batches)]
        stacked = np.concatenate(head)
        self.mean = stacked.mean((0, 2), keepdims=True)
        self.scale = stacked.std((0, 2), keepdims=True) + 1e-6

    def __call__(self, book):
        return (book - self.mean) / self.scale


def main():
    torch.manual_seed(19)
    for_model, for_stats = itertools.tee(book_stream(seed=20))
    normalise = Normaliser(for_stats)

    model = TCN()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    hits = seen = 0
    total = 0.0
    tic = time.perf_counter()
    for tick, (book, move) in enumerate(itertools.islice(for_model, TICKS)):
        x = torch.from_numpy(normalise(book))
        y = torch.from_numpy(move)

        # score first, then learn: what counts online is the prediction made before the update
        logits = model(x)
        hits += int(((logits > 0) == (y > 0.5)).sum())
        seen += len(y)

        loss = loss_fn(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()

        if (tick + 1) % REPORT == 0:
            toc = time.perf_counter()
            print(f"tick {tick + 1}: loss {total / REPORT:.3f}, hit rate {hits / seen:.3f}, "
                  f"{REPORT / (toc - tic):.0f} ticks/s")
            hits = seen = 0
            total, tic = 0.0, time.perf_counter()

    # the level that the first filters look at most
    weight = model.blocks[0].conv.weight.detach().abs().sum((0, 2))
    print("most used levels:", weight.topk(3).indices.tolist())
    print("scale of level 0:", round(float(normalise.scale[0, 0, 0]), 3))


if __name__ == "__main__":
    main()
