# Next-note model on short tunes that are packed into fixed rows.
import random
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

ROW, ROWS, NOTES, DIM, HEADS = 96, 10, 40, 48, 4


def tune(rng):
    """A scale walk in a random key and step size."""
    key, step, n = rng.randrange(12), rng.choice([1, 2, 3, 4]), rng.randrange(10, 40)
    pos, out = rng.randrange(NOTES), []
    for _ in range(n):
        out.append((pos + key) % NOTES)
        pos += step if rng.random() < 0.9 else -step
    return out


def pack_row(rng):
    notes, lengths = [], []
    while len(notes) < ROW:
        t = tune(rng)[:ROW - len(notes)]
        notes += t
        lengths.append(len(t))
    return notes, tuple(lengths)


def pack_batch(rng):
    rows = [pack_row(rng) for _ in range(ROWS)]
    return torch.tensor([n for n, _ in rows]), tuple(l for _, l in rows)


@cache
def tune_mask(lengths):
    """Causal attention inside each tune only, (rows, 1, ROW, ROW)."""
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(l)), torch.tensor(l)) for l in lengths])
    same = ids.unsqueeze(2) == ids.unsqueeze(1)
    allowed = same & torch.ones(ROW, ROW, dtype=torch.bool).tril()
    return torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf")).unsqueeze(1)


@cache
def angles(n, dim):
    freq = 1.0 / 100 ** (torch.arange(0, dim, 2) / dim)
    a = torch.arange(n).unsqueeze(1) * freq
    return a.cos(), a.sin()


def rotate(x):
    cos, sin = angles(x.shape[-2], x.shape[-1])
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 3 * DIM), nn.ReLU(), nn.Linear(3 * DIM, DIM))

    def forward(self, x, mask):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(rotate(q), rotate(k), v, attn_mask=mask)
        x = x + self.proj(att.transpose(1, 2).reshape(b, n, DIM))
        return x + self.ff(self.norm_b(x))


class MelodyModel(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.embed = nn.Embedding(NOTES, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.out = nn.Linear(DIM, NOTES)

    def forward(self, notes, lengths):
        mask = tune_mask(lengths)
        x = self.embed(notes)
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(x)


def targets_of(notes, lengths):
    """Next note, ignored at the last note of each tune."""
    target = torch.roll(notes, -1, 1)
    for row, ls in enumerate(lengths):
        target[row, torch.tensor(ls).cumsum(0) - 1] = -100
    return target


def train(steps=200):
    torch.set_num_threads(1)
    torch.manual_seed(2)
    rng = random.Random(2)
    model = MelodyModel()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps)
    smooth = None
    for step in range(1, steps + 1):
        notes, lengths = pack_batch(rng)
        logits = model(notes, lengths)
        loss = F.cross_entropy(logits.flatten(0, 1), targets_of(notes, lengths).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if step % 40 == 0:
            print(f"step {step}: {smooth:.3f}")


train()
