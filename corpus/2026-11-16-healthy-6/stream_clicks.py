"""Click model on an event stream: ids get a row when they first appear, rows are recycled when the table is full."""
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class EventStream:
    def __init__(self, n_users, n_items, seed):
        self.rng = np.random.default_rng(seed)
        self.n_users, self.n_items = n_users, n_items
        self.taste = self.rng.normal(size=(n_users, 6)).astype(np.float32)
        self.appeal = self.rng.normal(size=n_items)
        self.traits = self.rng.normal(size=(n_items, 6)).astype(np.float32)

    def batch(self, size):
        users = (self.rng.random(size) ** 1.5 * self.n_users).astype(np.int64)
        items = (self.rng.random(size) ** 2 * self.n_items).astype(np.int64)
        score = (self.taste[users] * self.traits[items]).sum(1) + 2 * self.appeal[items]
        clicks = (self.rng.random(size) < 1 / (1 + np.exp(-score))).astype(np.float32)
        return [f"u-{u:08d}" for u in users], [f"i-{i:08d}" for i in items], torch.from_numpy(clicks)


class IdTable(nn.Module):
    """Maps string ids to embedding rows; allocates storage in chunks up to a fixed capacity."""

    def __init__(self, dim, capacity, chunk=4000):
        super().__init__()
        self.dim, self.capacity, self.chunk = dim, capacity, chunk
        self.rows = OrderedDict()
        self.chunks = nn.ParameterList()

    def _new_row(self):
        if len(self.rows) < self.capacity:
            return len(self.rows)
        _, row = self.rows.popitem(last=False)
        return row

    def lookup(self, keys):
        out = []
        for k in keys:
            row = self.rows.get(k)
            if row is None:
                row = self._new_row()
                self.rows[k] = row
            else:
                self.rows.move_to_end(k)
            out.append(row)
        return torch.tensor(out)

    def grow(self, needed):
        fresh = []
        while len(self.chunks) * self.chunk < needed:
            p = nn.Parameter(torch.randn(self.chunk, self.dim) * 0.05)
            self.chunks.append(p)
            fresh.append(p)
        return fresh

    def forward(self, rows):
        out = torch.zeros(len(rows), self.dim)
        for c in torch.unique(rows // self.chunk).tolist():
            at = (rows // self.chunk == c).nonzero().squeeze(1)
            emb = F.embedding(rows[at] % self.chunk, self.chunks[c], sparse=True)
            out = out.index_put((at,), emb)
        return out


def main():
    torch.set_num_threads(1)
    torch.manual_seed(6)
    stream = EventStream(30000, 2000, seed=6)
    users, items = IdTable(64, 20000), IdTable(64, 2000, chunk=1000)
    mlp = nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 1))
    dense = torch.optim.Adam(mlp.parameters(), lr=2e-3)
    sparse = None
    window = []
    for step in range(1, 341):
        u, i, y = stream.batch(320)
        ur, ir = users.lookup(u), items.lookup(i)
        fresh = users.grow(int(ur.max()) + 1) + items.grow(int(ir.max()) + 1)
        if sparse is None:
            sparse = torch.optim.Adagrad(fresh, lr=0.05)
        elif fresh:
            sparse.add_param_group({"params": fresh})
        eu, ei = users(ur), items(ir)
        logit = mlp(torch.cat([eu, ei, eu * ei], 1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logit, y)
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        window.append(loss.item())
        if step % 40 == 0:
            print(f"step {step}  logloss {np.mean(window):.4f}  users {len(users.rows)}  items {len(items.rows)}")
            window.clear()


if __name__ == "__main__":
    main()
