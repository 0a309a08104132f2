import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Run:
    vocab: int = 48
    dim: int = 80
    layers: int = 2
    heads: int = 4
    micro_batch: int = 4
    accumulate: int = 4
    stages: tuple = ((32, 30), (64, 30), (96, 30), (128, 20))
    lr: float = 3e-3
    step: int = 0
    ppl: list = field(default_factory=list)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class CharLM(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.tok = nn.Embedding(r.vocab, r.dim)
        self.pos = nn.Embedding(r.stages[-1][0], r.dim)
        self.blocks = nn.Sequential(*[Block(r.dim, r.heads) for _ in range(r.layers)])
        self.head = nn.Linear(r.dim, r.vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        return self.head(self.blocks(x))


def synth_stream(vocab, n):
    trans = torch.softmax(3 * torch.randn(vocab, vocab), dim=1)
    draws = torch.multinomial(trans, n // vocab, replacement=True).tolist()
    out, cur, used = [], 0, [0] * vocab
    for _ in range(n):
        out.append(cur)
        row = draws[cur]
        used[cur] += 1
        cur = row[used[cur] % len(row)]
    return torch.tensor(out)


def batches(stream, length, size):
    while True:
        at = torch.randint(0, len(stream) - length - 1, (size,))
        rows = stream[at[:, None] + torch.arange(length + 1)]
        yield rows[:, :-1], rows[:, 1:]


def train(r):
    stream = synth_stream(r.vocab, 60_000)
    model = CharLM(r)
    opt = torch.optim.AdamW(model.parameters(), lr=r.lr, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 15))
    for length, n_steps in r.stages:
        source = batches(stream, length, r.micro_batch)
        total = 0.0
        for _ in range(n_steps):
            opt.zero_grad()
            for _ in range(r.accumulate):
                x, y = next(source)
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / r.accumulate
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            warm.step()
            r.step += 1
        r.ppl.append(math.exp(total / n_steps))
        print(f"step {r.step} context {length} ppl {r.ppl[-1]:.2f}")


torch.set_num_threads(1)
torch.manual_seed(21)
train(Run())
