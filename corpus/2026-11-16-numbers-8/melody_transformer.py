"""Melodies with a tiny causal transformer, cosine schedule with warm restarts."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PITCHES, LENGTH, DIM, HEADS = 24, 24, 32, 4
BATCH, STEPS, CYCLE = 16, 320, 80


def melodies(n, gen):
    """Runs up or down a scale from a random note, with wrong notes."""
    first = torch.randint(0, PITCHES, (n, 1), generator=gen)
    stride = torch.randint(1, 4, (n, 1), generator=gen)
    notes = (first + stride * torch.arange(LENGTH + 1)) % PITCHES
    wrong = torch.rand(n, LENGTH + 1, generator=gen) < 0.03
    notes = torch.where(wrong, torch.randint(0, PITCHES, notes.shape, generator=gen), notes)
    return notes[:, :-1], notes[:, 1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 3 * DIM), nn.GELU(), nn.Linear(3 * DIM, DIM))
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS) + self.mask[:t, :t]
        y = (att.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, t, DIM)
        x = x + self.proj(y)
        return x + self.mlp(self.n2(x))


class MelodyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitch = nn.Embedding(PITCHES, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(DIM, PITCHES)
        # travels with the state dict, so that a resumed run knows it
        self.register_buffer("best_valid", torch.tensor(float("inf")))

    def forward(self, notes):
        x = self.pitch(notes) + self.place[: notes.shape[1]]
        return self.out(self.blocks(x))


def nll(model, batch):
    notes, following = batch
    return F.cross_entropy(model(notes).flatten(0, 1), following.flatten())


def main():
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(62)
    valid = melodies(64, gen)
    model = MelodyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, CYCLE, eta_min=1e-5)
    for step in range(STEPS):
        model.train()
        loss = nll(model, melodies(BATCH, gen))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 40 == 0:
            model.eval()
            with torch.no_grad():
                score = nll(model, valid)
                model.best_valid.copy_(torch.minimum(model.best_valid, score))
            print(f"{step + 1:4d}  lr {scheduler.get_last_lr()[0]:.5f}  train {loss.item():.4f}  "
                  f"valid {score.item():.4f}  best {model.best_valid.item():.4f}")


if __name__ == "__main__":
    main()
