"""Character model for column addition, trained on freshly drawn unique problems."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

CHARS = "0123456789+=. "
INDEX = {c: i for i, c in enumerate(CHARS)}
WIDTH = 15


class ProblemSource:
    def __init__(self, seed, digits=4):
        self.rng = random.Random(seed)
        self.high = 10**digits
        self.issued = []

    def fresh(self):
        while True:
            a, b = self.rng.randrange(self.high), self.rng.randrange(self.high)
            problem = f"{a:04d}+{b:04d}="
            if problem not in self.issued:
                self.issued.append(problem)
                return problem + f"{a + b:05d}"[::-1][: WIDTH - len(problem)]

    def batches(self, size):
        while True:
            texts = [self.fresh().ljust(WIDTH) for _ in range(size)]
            yield torch.tensor([[INDEX[c] for c in text] for text in texts])


class CharGRU(nn.Module):
    def __init__(self, dim=48, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(CHARS))

    def forward(self, ids):
        states, _ = self.rnn(self.embed(ids))
        return self.out(states)


class Run:
    def __init__(self, batch_size=64, steps=240):
        self.source = ProblemSource(seed=6)
        self.model = CharGRU()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.batch_size = batch_size
        self.steps = steps
        self.smooth = None

    def update(self, ids):
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def go(self):
        stream = self.source.batches(self.batch_size)
        for step in range(1, self.steps + 1):
            value = self.update(next(stream))
            self.smooth = value if self.smooth is None else 0.95 * self.smooth + 0.05 * value
            if step % 60 == 0:
                print(f"step {step}: {self.smooth:.4f} nats/char")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(6)
    Run().go()
