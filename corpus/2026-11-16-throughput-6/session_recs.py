"""Session based recommendation: predict the next item of a shopping session."""
import gc
import random
from collections import deque

import torch
from torch import nn


class Event:
    __slots__ = ("item", "dwell", "tags")

    def __init__(self, item, dwell, tags):
        self.item = item
        self.dwell = dwell
        self.tags = tags


class Session:
    def __init__(self, user, events):
        self.user = user
        self.events = events
        self.meta = {"length": len(events), "device": user % 3}


def build_sessions(n, n_items, rng):
    sessions = []
    for user in range(n):
        item = rng.randrange(n_items)
        events = []
        for _ in range(rng.randint(6, 10)):
            events.append(Event(item, rng.random(), [item % 7, item % 11]))
            item = (item * 3 + rng.choice((1, 1, 1, 2, 5))) % n_items
        sessions.append(Session(user, events))
    return sessions


class NextItem(nn.Module):
    def __init__(self, n_items, dim=32):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.dwell = nn.Linear(1, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, items, dwell):
        x = self.items(items) + self.dwell(dwell.unsqueeze(-1))
        _, h = self.rnn(x)
        return h[-1] @ self.items.weight.t()


class Recommender:
    def __init__(self, sessions, n_items, batch_size=48, clean_every=10):
        self.sessions = sessions
        self.batch_size = batch_size
        self.clean_every = clean_every
        self.model = NextItem(n_items)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.loss_fn = nn.CrossEntropyLoss()
        self.recent = deque(maxlen=50)

    def batch(self, rng):
        picked = rng.sample(self.sessions, self.batch_size)
        tails = [s.events[-6:] for s in picked]
        items = torch.tensor([[e.item for e in t] for t in tails])
        dwell = torch.tensor([[e.dwell for e in t[:-1]] for t in tails])
        return items[:, :-1], dwell, items[:, -1]

    def train(self, steps, rng):
        for step in range(1, steps + 1):
            items, dwell, target = self.batch(rng)
            logits = self.model(items, dwell)
            loss = self.loss_fn(logits, target)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.recent.append(loss.item())
            if step % self.clean_every == 0:
                # free what the last batches left behind
                gc.collect()
            if step % 50 == 0:
                hit = (logits.topk(10).indices == target[:, None]).any(1).float().mean()
                print(f"step {step}: loss {sum(self.recent) / len(self.recent):.3f}  hit@10 {hit.item():.2f}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(8)
    rng = random.Random(8)
    n_items = 300
    sessions = build_sessions(20000, n_items, rng)
    print(f"{len(sessions)} sessions, {sum(len(s.events) for s in sessions)} events")
    Recommender(sessions, n_items).train(260, rng)


if __name__ == "__main__":
    main()
