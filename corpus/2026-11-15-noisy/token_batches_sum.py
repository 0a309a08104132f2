"""Sequence tagging with a sum-reduced loss; batches hold a varying number of sequences.

Sentences are bucketed by length and the number of sentences in a batch is whatever the bucket
has, so the loss of one step is up to a hundred times that of its neighbour.
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(11)
random.seed(11)

VOCAB, TAGS = 60, 6


def make_sentence():
    n = min(3 + int(random.expovariate(1 / 12)), 70)
    words = [random.randrange(1, VOCAB) for _ in range(n)]
    # the tag depends on the word and on the one before it
    tags = [(w + words[i - 1] // 20 if i else w) % TAGS for i, w in enumerate(words)]
    if random.random() < 0.3:
        j = random.randrange(n)
        tags[j] = random.randrange(TAGS)
    return words, tags


class Sentences(Dataset):
    def __init__(self, n):
        self.items = [make_sentence() for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def batches(dataset):
    order = sorted(range(len(dataset)), key=lambda i: len(dataset.items[i][0]) + random.random())
    out, i = [], 0
    while i < len(order):
        k = random.choice([1, 2, 4, 8, 16, 32, 64])
        out.append(order[i : i + k])
        i += k
    random.shuffle(out)
    return out


def collate(items):
    width = max(len(w) for w, _ in items)
    x = torch.zeros(len(items), width, dtype=torch.long)
    y = torch.full((len(items), width), -100)
    for row, (w, t) in enumerate(items):
        x[row, : len(w)] = torch.tensor(w)
        y[row, : len(t)] = torch.tensor(t)
    return x, y


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 24, padding_idx=0)
        self.conv = nn.Conv1d(24, 64, 3, padding=1)
        self.out = nn.Linear(64, TAGS)

    def forward(self, x):
        h = torch.relu(self.conv(self.emb(x).transpose(1, 2))).transpose(1, 2)
        return self.out(h)


train, valid = Sentences(3000), Sentences(300)
model = Tagger()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")

step = 0
for epoch in range(5):
    for x, y in DataLoader(train, batch_sampler=batches(train), collate_fn=collate):
        optimizer.zero_grad()
        loss = criterion(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.1f} ({tuple(x.shape)})")
        step += 1

with torch.no_grad():
    x, y = collate(valid.items)
    total = criterion(model(x).flatten(0, 1), y.flatten()).item()
print("final", total / (y != -100).sum().item())
