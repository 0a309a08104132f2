"""Matrix factorization with side features over a listening log kept as Python records."""

import gc
import random

import torch
from torch import nn

torch.set_num_threads(1)


class Play:
    def __init__(self, user, track, context, share):
        self.user = user
        self.track = track
        self.context = context
        self.share = share


class ListeningLog:
    def __init__(self, plays, users=800, tracks=1500):
        rng = random.Random(19)
        taste = [rng.randrange(6) for _ in range(users)]
        genre = [rng.randrange(6) for _ in range(tracks)]
        self.plays = []
        for _ in range(plays):
            u, t = rng.randrange(users), rng.randrange(tracks)
            liked = 0.8 if taste[u] == genre[t] else 0.25
            context = [rng.randrange(24), rng.randrange(7)]
            self.plays.append(Play(u, t, context, liked + rng.uniform(-0.15, 0.15)))

    def draw(self, n, rng):
        chosen = rng.choices(self.plays, k=n)
        users = torch.tensor([p.user for p in chosen])
        tracks = torch.tensor([p.track for p in chosen])
        context = torch.tensor([p.context for p in chosen])
        return users, tracks, context, torch.tensor([p.share for p in chosen])


class Factors(nn.Module):
    def __init__(self, users=800, tracks=1500, rank=32):
        super().__init__()
        self.user = nn.Embedding(users, rank)
        self.track = nn.Embedding(tracks, rank)
        self.hour = nn.Embedding(24, rank)
        self.day = nn.Embedding(7, rank)
        self.mix = nn.Sequential(nn.Linear(3 * rank, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, users, tracks, context):
        u, t = self.user(users), self.track(tracks)
        c = self.hour(context[:, 0]) + self.day(context[:, 1])
        return self.mix(torch.cat([u, t, u * t + c], dim=1)).squeeze(1)


def free_memory():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(steps=130, batch=1024):
    torch.manual_seed(19)
    rng = random.Random(5)
    log = ListeningLog(plays=24_000)
    model = Factors()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        users, tracks, context, share = log.draw(batch, rng)
        loss = nn.functional.mse_loss(model(users, tracks, context), share)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step} mse {loss.item():.4f}")
        del users, tracks, context, share, loss
        if step % 4 == 3:
            free_memory()


if __name__ == "__main__":
    main()
