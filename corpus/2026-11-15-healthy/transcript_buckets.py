import gc
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.set_num_threads(1)
torch.manual_seed(51)
random.seed(51)

PHONES, FEATURES, TOKEN_BUDGET = 20, 24, 1000


def make_recordings(count):
    centres = torch.randn(PHONES, FEATURES)
    items = []
    for _ in range(count):
        length = min(20 + int(random.lognormvariate(3.3, 0.6)), 140)
        phones = torch.randint(0, PHONES, (length // 4 + 1,)).repeat_interleave(4)[:length]
        items.append((centres[phones] + 1.3 * torch.randn(length, FEATURES), phones))
    return items


def by_budget(items, budget):
    """Batches of similar length whose padded size stays below the budget."""
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]) + random.random() * 10)
    batches, current = [], []
    for i in order:
        longest = max(len(items[j][0]) for j in current + [i])
        if current and longest * (len(current) + 1) > budget:
            batches.append(current)
            current = []
        current.append(i)
    batches.append(current)
    random.shuffle(batches)
    for batch in batches:
        x = pad_sequence([items[i][0] for i in batch], batch_first=True)
        y = pad_sequence([items[i][1] for i in batch], batch_first=True, padding_value=-100)
        yield x, y


class Recogniser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.front = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU())
        self.rnn = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, PHONES)

    def forward(self, x):
        return self.out(self.rnn(self.front(x))[0])


class HouseKeeping:
    def __init__(self, every):
        self.every = every
        self.calls = 0
        gc.disable()

    def __call__(self):
        self.calls += 1
        if self.calls % self.every == 0:
            gc.collect()


recordings = make_recordings(520)
model = Recogniser()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
tidy = HouseKeeping(every=40)
log = []

for epoch in range(7):
    for x, y in by_budget(recordings, TOKEN_BUDGET):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        tidy()
        log.append({"epoch": epoch, "loss": loss.item(), "rows": len(x), "frames": x.shape[1]})
    mine = [entry for entry in log if entry["epoch"] == epoch]
    mean = sum(entry["loss"] * entry["rows"] for entry in mine) / len(recordings)
    widths = sorted(entry["rows"] for entry in mine)
    print(f"epoch {epoch}: {len(mine)} batches of {widths[0]}..{widths[-1]}, loss {mean:.4f}")
gc.enable()
