"""Prototypical network on synthetic glyphs: 5-way 3-shot episodes."""
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE = 14
N_ALPHABETS = 12
GLYPHS_PER_ALPHABET = 20
DRAWINGS = 160
WAYS, SHOTS, QUERIES = 5, 3, 5
EPISODES = 350


def build_archive(seed=0):
    """Strokes are random walks; every drawing is a jittered version of its glyph."""
    rng = np.random.default_rng(seed)
    pictures, names = [], []
    for a in range(N_ALPHABETS):
        for g in range(GLYPHS_PER_ALPHABET):
            walk = np.cumsum(rng.normal(0, 1.6, size=(12, 2)), axis=0)
            walk = (walk - walk.min(0)) / (np.ptp(walk, axis=0) + 1e-6) * (SIDE - 3) + 1
            pts = np.clip(walk + rng.normal(0, 0.5, size=(DRAWINGS, 12, 2)), 0, SIDE - 1).astype(int)
            img = np.zeros((DRAWINGS, SIDE, SIDE), dtype=np.uint8)
            img[np.arange(DRAWINGS)[:, None], pts[..., 0], pts[..., 1]] = 255
            pictures.append(img)
            names.extend([f"alphabet{a:02d}/character{g:02d}"] * DRAWINGS)
    return np.concatenate(pictures), names


class Archive:
    def __init__(self, pictures, names, held_out):
        self.pictures = pictures
        self.names = names
        self.all_glyphs = sorted(set(names))
        self.glyphs = [n for n in self.all_glyphs if not n.startswith(held_out)]
        self.held_out = [n for n in self.all_glyphs if n.startswith(held_out)]

    def drawings_of(self, glyph):
        return [i for i, name in enumerate(self.names) if name == glyph]

    def episode(self, rng, pool=None):
        chosen = rng.sample(pool or self.glyphs, WAYS)
        support, query = [], []
        for glyph in chosen:
            picks = rng.sample(self.drawings_of(glyph), SHOTS + QUERIES)
            support.extend(picks[:SHOTS])
            query.extend(picks[SHOTS:])
        s = torch.from_numpy(self.pictures[support]).float().div(255).unsqueeze(1)
        q = torch.from_numpy(self.pictures[query]).float().div(255).unsqueeze(1)
        target = torch.arange(WAYS).repeat_interleave(QUERIES)
        return s, q, target


class Encoder(nn.Module):
    def __init__(self, width=16, dim=32):
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.proj = nn.Linear(width * 9, dim)

    def forward(self, x):
        return self.proj(self.blocks(x).flatten(1))


def proto_logits(encoder, support, query):
    z = encoder(torch.cat([support, query]))
    protos = z[: len(support)].view(WAYS, SHOTS, -1).mean(1)
    return -torch.cdist(z[len(support):], protos).pow(2)


def meta_test(encoder, archive, rng, rounds=4):
    encoder.eval()
    hits = 0.0
    with torch.no_grad():
        for _ in range(rounds):
            s, q, y = archive.episode(rng, archive.held_out)
            hits += (proto_logits(encoder, s, q).argmax(1) == y).float().mean().item()
    encoder.train()
    return hits / rounds


def main():
    torch.manual_seed(1)
    rng = random.Random(1)
    archive = Archive(*build_archive(), held_out="alphabet11")
    encoder = Encoder()
    opt = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=150, gamma=0.5)
    avg = None
    for episode in range(EPISODES):
        support, query, target = archive.episode(rng)
        loss = F.cross_entropy(proto_logits(encoder, support, query), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        avg = loss.detach() if avg is None else 0.95 * avg + 0.05 * loss.detach()
        if (episode + 1) % 70 == 0:
            print(f"episode {episode + 1:4d}  loss {avg.item():.3f}")
    print(f"held-out accuracy {meta_test(encoder, archive, rng):.3f}")


if __name__ == "__main__":
    main()
