"""Two-tower implicit-feedback recommender trained with a WARP ranking loss."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

N_USERS, N_ITEMS, DIM = 1200, 900, 32
BATCH = 192
STEPS = 200
MARGIN = 0.5
CANDIDATES = 10


def make_interactions(gen):
    """Users and items live in a few taste clusters; each user likes a handful of items."""
    taste = torch.randint(0, 12, (N_USERS,), generator=gen)
    genre = torch.randint(0, 12, (N_ITEMS,), generator=gen)
    likes = []
    for u in range(N_USERS):
        pool = (genre == taste[u]).nonzero().flatten()
        extra = torch.randint(0, N_ITEMS, (3,), generator=gen)
        keep = pool[torch.randperm(len(pool), generator=gen)[:15]]
        likes.append(set(keep.tolist()) | set(extra.tolist()))
    pairs = torch.tensor([(u, i) for u, s in enumerate(likes) for i in s])
    return likes, pairs


class Tower(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.table = nn.Embedding(count, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, DIM))
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, ids):
        e = self.table(ids)
        return F.normalize(e + self.mlp(e), dim=-1)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = Tower(N_USERS)
        self.items = Tower(N_ITEMS)
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, users):
        every = torch.arange(N_ITEMS)
        return self.scale * self.users(users) @ self.items(every).T


def warp_loss(scores, users, positives, likes, rng):
    """Take the hardest of a few drawn items for each user, weight by the rank estimate."""
    rows, negatives, weights = [], [], []
    for row in range(scores.size(0)):
        liked = likes[users[row].item()]
        hardest, best, above = None, -math.inf, 0
        for item in rng.sample(range(N_ITEMS), CANDIDATES):
            if item in liked:
                continue
            value = scores[row, item].item()
            above += value > scores[row, positives[row]].item() - MARGIN
            if value > best:
                hardest, best = item, value
        if above:
            rows.append(row)
            negatives.append(hardest)
            weights.append(math.log1p(above * N_ITEMS / CANDIDATES))
    if not rows:
        return scores.sum() * 0
    rows = torch.tensor(rows)
    violation = MARGIN - scores[rows, positives[rows]] + scores[rows, torch.tensor(negatives)]
    return (torch.tensor(weights) * violation.clamp(min=0)).mean()


@torch.no_grad()
def hit_rate(model, pairs, k=20):
    probe = pairs[:400]
    top = model(probe[:, 0]).topk(k, dim=1).indices
    return (top == probe[:, 1:]).any(1).float().mean().item()


def train():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    rng = random.Random(5)
    gen = torch.Generator().manual_seed(5)
    likes, pairs = make_interactions(gen)
    model = Recommender()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    running = 0.0
    for step in range(1, STEPS + 1):
        batch = pairs[torch.randint(0, len(pairs), (BATCH,), generator=gen)]
        users, positives = batch[:, 0], batch[:, 1]
        loss = warp_loss(model(users), users, positives, likes, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if step % 50 == 0:
            print(f"step {step:4d}  warp {running / 50:.4f}  hit@20 {hit_rate(model, pairs):.3f}")
            running = 0.0


if __name__ == "__main__":
    train()
