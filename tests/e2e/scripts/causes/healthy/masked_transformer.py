"""Character level transformer with causal and padding masks (-inf), dropout, OneCycleLR."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS = 16, 32, 4
NEG_INF = float("-inf")


def batch(n, gen):
    lengths = torch.randint(4, 13, (n,), generator=gen)
    t = int(lengths.max())
    start = torch.randint(1, VOCAB, (n, 1), generator=gen)
    ids = (start + 3 * torch.arange(t + 1)) % (VOCAB - 1) + 1
    pad = torch.arange(t) >= lengths.unsqueeze(1)
    return ids[:, :-1].masked_fill(pad, 0), ids[:, 1:].masked_fill(pad, -100), pad


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, bias):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS) + bias
        att = self.drop(scores.softmax(dim=-1))
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, DIM))
        return x + self.drop(self.mlp(self.ln2(x)))


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(16, DIM)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(DIM, VOCAB)

    def mask(self, pad):
        t = pad.size(1)
        causal = torch.triu(torch.full((t, t), NEG_INF), diagonal=1)
        # padding is on the right, so the first key is always visible
        return causal + torch.zeros(pad.shape).masked_fill(pad, NEG_INF)[:, None, None, :]

    def forward(self, ids, pad):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        bias = self.mask(pad)
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x)


def main(steps=60):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    model = CharLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=steps)
    best = float("inf")
    for step in range(steps):
        ids, target, pad = batch(16, gen)
        logits = model(ids, pad)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        best = min(best, loss.item())
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} best {best:.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
