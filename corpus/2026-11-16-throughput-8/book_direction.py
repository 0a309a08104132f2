"""Short-term price direction from order book events (GRU, Accelerate)."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import release_memory, set_seed
from torch.utils.data import DataLoader, Dataset

N_EVENTS, CONTEXT, HORIZON = 360_000, 20, 10
TICK = 0.01


class Event:
    """One message of the exchange feed."""

    __slots__ = ("bid", "side", "size", "spread")

    def __init__(self, bid, side, size, spread):
        self.bid, self.side, self.size, self.spread = bid, side, size, spread

    def features(self, reference):
        return [(self.bid - reference) / TICK, self.side, self.size / 100.0, self.spread / TICK]


def replay_feed(n, seed=0):
    """A mean-reverting pressure drives both the aggressor side and the bid."""
    rng = random.Random(seed)
    bid, pressure, feed = 100.0, 0.0, []
    for _ in range(n):
        pressure = 0.93 * pressure + 0.3 * (rng.random() - 0.5)
        side = 1 if rng.random() < 0.5 + pressure else -1
        if rng.random() < 0.4:
            bid += TICK if rng.random() < 0.5 + pressure else -TICK
        feed.append(Event(bid, side, rng.randrange(1, 300), TICK * rng.choice((1, 1, 2))))
    return feed


class Windows(Dataset):
    def __init__(self, feed):
        self.feed = feed

    def __len__(self):
        return 12_000

    def __getitem__(self, i):
        start = i * 29
        part = self.feed[start:start + CONTEXT]
        x = torch.tensor([e.features(part[-1].bid) for e in part])
        later = self.feed[start + CONTEXT + HORIZON].bid
        return x, float(later > part[-1].bid)


class DirectionModel(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.scale = nn.LayerNorm(4)
        self.rnn = nn.GRU(4, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        _, h = self.rnn(self.scale(x))
        return self.out(h[-1]).squeeze(1)


def main():
    set_seed(17)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Windows(replay_feed(N_EVENTS)), batch_size=24, shuffle=True, drop_last=True)
    model = DirectionModel()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=300)
    model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)

    running, seen = torch.zeros(()), 0
    for step, (x, up) in enumerate(loader):
        if step == 300:
            break
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, up.float())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        running += loss.detach()
        seen += 1
        if step % 8 == 7:
            logits, loss = release_memory(logits, loss)
        if step % 60 == 59:
            accelerator.print(f"step {step + 1:4d}  loss {running.item() / seen:.4f}")
            running, seen = torch.zeros(()), 0


if __name__ == "__main__":
    main()
