import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

FIELDS, CARD, DENSE, REGIONS = 8, 2000, 16, 4


class ImpressionStream(IterableDataset):
    """Click log read shard by shard, shuffled through a reservoir."""

    def __init__(self, shards, rows_per_shard, buffer_rows, seed=0):
        self.shards, self.rows = shards, rows_per_shard
        self.buffer_rows, self.seed = buffer_rows, seed

    def read_shard(self, shard):
        rng = np.random.default_rng(1000 + shard)
        weight = np.random.default_rng(7).normal(0, 1.0, (FIELDS, CARD))
        cats = rng.zipf(1.5, (self.rows, FIELDS)) % CARD
        dense = rng.normal(0, 1, (self.rows, DENSE)).astype(np.float32)
        region = rng.integers(0, REGIONS, self.rows)
        dense[:, 0] += region
        score = weight[np.arange(FIELDS), cats].sum(1) + dense[:, 1] - dense[:, 2] - 0.5
        click = (score + rng.logistic(0, 0.5, self.rows) > 0).astype(np.float32)
        parts = [cats, region[:, None], dense, click[:, None]]
        for row in np.concatenate(parts, axis=1, dtype=np.float32):
            yield row.copy()

    def __iter__(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        rng = np.random.default_rng(self.seed + wid)
        reservoir = []
        for shard in range(wid, self.shards, n):
            for i, row in enumerate(self.read_shard(shard)):
                reservoir.append(row)
                if len(reservoir) < self.buffer_rows and i % 3 == 0:
                    continue
                k = int(rng.random() * len(reservoir))
                reservoir[k], reservoir[-1] = reservoir[-1], reservoir[k]
                yield reservoir.pop()
        rng.shuffle(reservoir)
        yield from reservoir


def collate(rows):
    return torch.from_numpy(np.stack(rows))


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class ClickModel(nn.Module):
    def __init__(self, dim=16, hidden=768):
        super().__init__()
        self.tables = nn.Embedding(FIELDS * CARD, dim)
        nn.init.normal_(self.tables.weight, std=0.05)
        self.register_buffer("offset", torch.arange(FIELDS) * CARD)
        self.trunk = nn.Sequential(
            nn.Linear(FIELDS * dim + DENSE, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.click = nn.Linear(hidden, 1)
        self.region = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, REGIONS))

    def forward(self, cats, dense, strength):
        x = self.trunk(torch.cat([self.tables(cats + self.offset).flatten(1), dense], 1))
        return self.click(x).squeeze(1), self.region(ReverseGradient.apply(x, strength))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stream = ImpressionStream(shards=30, rows_per_shard=2000, buffer_rows=4000)
    loader = DataLoader(
        stream, batch_size=256, num_workers=2, collate_fn=collate, prefetch_factor=4
    )
    model = ClickModel()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    smooth = None
    for step, table in enumerate(loader):
        cats, region = table[:, :FIELDS].long(), table[:, FIELDS].long()
        dense, click = table[:, FIELDS + 1 : -1], table[:, -1]
        strength = 0.1 * (2 / (1 + math.exp(-step / 60)) - 1)
        logit, where = model(cats, dense, strength)
        click_loss = F.binary_cross_entropy_with_logits(logit, click)
        loss = click_loss + F.cross_entropy(where, region)
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = click_loss.item()
        smooth = value if smooth is None else 0.97 * smooth + 0.03 * value
        if step % 50 == 0:
            print(f"step {step:4d} click loss {smooth:.4f}")
    print(f"done after {step + 1} batches, click loss {smooth:.4f}")


if __name__ == "__main__":
    main()
