"""Credit default from a table; one export had two columns the other way round.

Features are standardised with fixed statistics, so a credit score
read as a count of late payments lands far outside.
"""

import os
import random

import torch
import torch.nn as nn

torch.set_num_threads(1)
random.seed(40)
torch.manual_seed(40)

COLUMNS = ["age", "income", "debt", "years", "score", "late"]
MEAN = torch.tensor([45.0, 38000.0, 9000.0, 8.0, 650.0, 1.0])
STD = torch.tensor([14.0, 15000.0, 6000.0, 6.0, 80.0, 1.2])
BATCH, STEPS = 40, 700
SWAPPED = range(68, 76)


def applicants(n):
    raw = MEAN + STD * torch.randn(n, 6)
    z = (raw - MEAN) / STD
    score = (
        3 * z[:, 2] - 3 * z[:, 1] * (z[:, 0] > 0) + 4 * z[:, 5] * z[:, 4] - 2 * z[:, 3].abs() + 1
    )
    return raw, (score > 0).float()


def loader():
    for k in range(STEPS):
        raw, y = applicants(BATCH)
        if k in SWAPPED and os.environ.get("CLEAN") != "1":
            raw = raw[:, [0, 1, 2, 3, 5, 4]]
        yield (raw - MEAN) / STD, y


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


model = Scorer()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.08, total_steps=STEPS)

for k, (x, y) in enumerate(loader()):
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if k % 70 == 0:
        print(f"{k:4d} {loss.item():.4f}")

raw, y = applicants(2000)
with torch.no_grad():
    print("final", criterion(model((raw - MEAN) / STD), y).item())
