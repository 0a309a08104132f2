"""Person re-identification on precomputed features: softmax first, then softmax + triplet."""

import functools

import torch
import torch.nn as nn
import torch.nn.functional as F

N_IDS = 8
PER_ID = 4


def pairwise_distance(x):
    diff = x.unsqueeze(1) - x.unsqueeze(0)
    return torch.sqrt(diff.pow(2).sum(dim=2))


def batch_hard_triplet(emb, ids, margin=0.3):
    """Hardest positive and hardest negative of every anchor (Hermans et al.)."""
    dist = pairwise_distance(emb)
    same = ids.unsqueeze(0) == ids.unsqueeze(1)
    hardest_pos = (dist * same).max(dim=1).values
    hardest_neg = (dist + 1e3 * same).min(dim=1).values
    return F.relu(hardest_pos - hardest_neg + margin).mean()


def mean_gap(emb, ids):
    dist = pairwise_distance(emb.detach())
    same = ids.unsqueeze(0) == ids.unsqueeze(1)
    return (dist[~same].mean() - dist[same].mean()).item()


def log_every(n):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(step, *args):
            loss, gap = fn(step, *args)
            if step % n == 0:
                print(f"step {step:3d} loss {loss:.4f} gap {gap:.3f}")
            return loss

        return inner

    return wrap


class ReID(nn.Module):
    def __init__(self, in_dim=24, dim=16):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(in_dim, 48), nn.ReLU(), nn.Linear(48, dim))
        self.bnneck = nn.BatchNorm1d(dim)
        self.classifier = nn.Linear(dim, N_IDS, bias=False)

    def forward(self, x):
        emb = self.embed(x)
        return emb, self.classifier(self.bnneck(emb))


@log_every(4)
def train_step(step, model, opt, x, ids, triplet_from):
    emb, logits = model(x)
    loss = F.cross_entropy(logits, ids)
    if step >= triplet_from:
        loss = loss + batch_hard_triplet(emb, ids)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), mean_gap(emb, ids)


def main():
    torch.manual_seed(55)
    centre = torch.randn(N_IDS, 24)
    ids = torch.arange(N_IDS).repeat_interleave(PER_ID)
    model = ReID()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(60):
        x = centre[ids] + 0.6 * torch.randn(len(ids), 24)
        train_step(step, model, opt, x, ids, 15)


if __name__ == "__main__":
    main()
