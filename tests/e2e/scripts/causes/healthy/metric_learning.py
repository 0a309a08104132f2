"""Metric learning with norms, distances and angles that do touch zero, written with care."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    ids: int = 6
    per_id: int = 4
    steps: int = 60
    lr: float = 3e-3
    eps: float = 1e-7


def pairwise_distance(x):
    """Distances with a usable gradient on the diagonal."""
    sq = (x.unsqueeze(1) - x.unsqueeze(0)).pow(2).sum(-1)
    positive = sq > 0
    safe = torch.where(positive, sq, torch.ones_like(sq))
    return torch.where(positive, safe.sqrt(), torch.zeros_like(sq))


def angle(a, b, eps):
    cosine = F.cosine_similarity(a, b, dim=-1)
    return torch.acos(cosine.clamp(-1 + eps, 1 - eps))


def triplet(dist, labels, margin=0.3):
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    pos = dist.masked_fill(~same, float("-inf")).amax(dim=1)
    neg = dist.masked_fill(same, float("inf")).amin(dim=1)
    return F.relu(pos - neg + margin).mean()


def spread(emb, labels):
    """Standard deviation inside the classes; torch.std has a zero gradient at zero."""
    return torch.stack([emb[labels == c].std(dim=0).mean() for c in labels.unique()]).mean()


def main():
    cfg = Config()
    torch.manual_seed(8)
    centre = torch.randn(cfg.ids, 12)
    labels = torch.arange(cfg.ids).repeat_interleave(cfg.per_id)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        x = centre[labels] + 0.4 * torch.randn(len(labels), 12)
        # some exact duplicates, as in the real data
        x[1], x[5] = x[0], x[4]
        emb = model(x)
        dist = pairwise_distance(emb)
        loss = triplet(dist, labels)
        loss = loss + 0.05 * angle(emb[0::4], emb[1::4], cfg.eps).mean()
        loss = loss + 0.01 * spread(emb, labels) + 0.01 * torch.cdist(emb, emb).mean()
        # the norm of a null vector is fine as long as it is not divided by
        loss = loss + 0.01 * (emb * (labels > 0).unsqueeze(1)).norm(dim=1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
