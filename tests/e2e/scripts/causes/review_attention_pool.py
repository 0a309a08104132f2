"""Sentiment of short reviews with additive attention pooling."""

import functools
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

POSITIVE = "good great fine lovely super nice".split()
NEGATIVE = "bad awful poor boring sad weak".split()
FILLER = "the a film plot actor scene was is very".split()
STOP = {"the", "a", "was", "is"}
VOCAB = {w: i + 1 for i, w in enumerate(POSITIVE + NEGATIVE + FILLER)}


def timed(fn):
    """Keep the total time spent in fn as fn.seconds."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        t0 = time.perf_counter()
        try:
            return fn(*args, **kwargs)
        finally:
            wrapper.seconds += time.perf_counter() - t0

    wrapper.seconds = 0.0
    return wrapper


class Reviews(Dataset):
    def __init__(self, n=144):
        g = torch.Generator().manual_seed(4)

        def pick(words, k):
            return [words[i] for i in torch.randint(len(words), (k,), generator=g).tolist()]

        self.items = []
        for i in range(n):
            label = i % 2
            words = pick(POSITIVE if label else NEGATIVE, 2) + pick(FILLER, 2 + i % 5)
            self.items.append((" ".join(words), label))
        self.items[33] = ("The is the", 1)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        text, label = self.items[i]
        words = [w for w in text.lower().split() if w not in STOP]
        return [VOCAB[w] for w in words], label


def collate(batch):
    ids = torch.zeros(len(batch), max(len(b[0]) for b in batch), dtype=torch.long)
    for row, (tokens, _) in zip(ids, batch):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return ids, torch.tensor([b[1] for b in batch])


class AttentionClassifier(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB) + 1, dim, padding_idx=0)
        self.key = nn.Linear(dim, dim)
        self.query = nn.Parameter(torch.randn(dim) / dim**0.5)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(dim, 2)

    def forward(self, ids):
        x = self.embed(ids)
        scores = torch.tanh(self.key(x)) @ self.query
        scores = scores.masked_fill(ids == 0, float("-inf"))
        weights = torch.softmax(scores, dim=1)
        pooled = (weights.unsqueeze(-1) * x).sum(dim=1)
        return self.fc(self.drop(pooled))


@timed
def train_step(model, optimizer, ids, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(ids), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(3)
    loader = DataLoader(Reviews(), batch_size=12, shuffle=True, collate_fn=collate)
    model = AttentionClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for _ in range(4):
        for ids, labels in loader:
            loss = train_step(model, optimizer, ids, labels)
            if step % 4 == 0:
                print(f"step {step:3d} | loss {loss:.4f}")
            step += 1
    print(f"{step} steps, {train_step.seconds:.2f}s in train_step")


if __name__ == "__main__":
    main()
