"""Fraud-like classification: four classes, two of them rare and arriving in clumps.

The rows of each source go in together, so most batches hold only the common classes and once in
a while a batch is nearly all rare ones, with a class weight on top.
"""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.set_num_threads(1)
torch.manual_seed(31)

COUNTS = [6000, 3000, 140, 60]
DIM = 16


class Claims(Dataset):
    def __init__(self, counts, centers):
        self.y = torch.cat([torch.full((c,), k) for k, c in enumerate(counts)])
        self.x = centers[self.y] + torch.randn(len(self.y), DIM)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ClumpedSampler(Sampler):
    """Common rows in random order, rare rows dropped in as runs of 20."""

    def __init__(self, y):
        self.common = torch.nonzero(y < 2).flatten()
        self.rare = torch.nonzero(y >= 2).flatten()

    def __len__(self):
        return len(self.common) + len(self.rare)

    def __iter__(self):
        common = self.common[torch.randperm(len(self.common))].tolist()
        rare = self.rare[torch.randperm(len(self.rare))].tolist()
        runs = [rare[i : i + 20] for i in range(0, len(rare), 20)]
        cuts = sorted(torch.randint(0, len(common), (len(runs),)).tolist())
        last = 0
        for cut, run in zip(cuts, runs):
            yield from common[last:cut]
            yield from run
            last = cut
        yield from common[last:]


centers = 1.1 * torch.randn(4, DIM)
train = Claims(COUNTS, centers)
test = Claims([200, 200, 200, 200], centers)
loader = DataLoader(train, batch_size=32, sampler=ClumpedSampler(train.y))

model = nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 4))
weight = torch.tensor([0.5, 1.0, 8.0, 15.0])
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

step = 0
for epoch in range(4):
    model.train()
    for x, y in loader:
        # weighted, and divided by the batch size rather than by the sum of the weights
        loss = nn.functional.cross_entropy(model(x), y, weight=weight, reduction="sum") / len(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        step += 1

model.eval()
with torch.no_grad():
    print("final", nn.functional.cross_entropy(model(test.x), test.y).item())
