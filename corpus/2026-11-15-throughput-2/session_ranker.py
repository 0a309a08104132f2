"""Next-item prediction from shop sessions kept as plain Python records."""

import gc
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

ITEMS = 800


@dataclass
class Options:
    sessions: int = 80_000
    batch_size: int = 160
    steps: int = 200
    tidy_every: int = 10
    lr: float = 1e-2


def load_sessions(count, rng):
    sessions = []
    for number in range(count):
        shelf = rng.randrange(40) * 20
        clicks = [{"item": shelf + rng.randrange(20), "dwell": rng.random()} for _ in range(4)]
        sessions.append({"id": number, "clicks": clicks, "tags": ["web", shelf // 20]})
    return sessions


class SessionModel(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.items = nn.Embedding(ITEMS, dim)
        self.gru = nn.GRU(dim + 1, dim, batch_first=True)

    def forward(self, items, dwell):
        x = torch.cat([self.items(items), dwell.unsqueeze(-1)], dim=-1)
        _, last = self.gru(x)
        return last[0] @ self.items.weight.t()


def encode(batch):
    items = torch.tensor([[click["item"] for click in s["clicks"]] for s in batch])
    dwell = torch.tensor([[click["dwell"] for click in s["clicks"]] for s in batch])
    return items[:, :-1], dwell[:, :-1], items[:, -1]


def train(options):
    rng = random.Random(80)
    torch.manual_seed(80)
    sessions = load_sessions(options.sessions, rng)
    model = SessionModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    total = 0.0
    for step in range(1, options.steps + 1):
        items, dwell, following = encode(rng.sample(sessions, options.batch_size))
        loss = F.cross_entropy(model(items, dwell), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % options.tidy_every == 0:
            gc.collect()
        if step % 40 == 0:
            print(f"step {step}: cross entropy {total / 40:.4f}")
            total = 0.0


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Options())
