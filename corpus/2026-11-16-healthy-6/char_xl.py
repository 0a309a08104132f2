"""Segment-level recurrence on a synthetic log-file corpus (character level)."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)
random.seed(5)

SEG, MEM, BATCH, DIM, HEADS, LAYERS = 16, 224, 4, 48, 4, 2


def write_log(n):
    lines, clock = [], 0
    while n > 0:
        clock += random.randint(1, 40)
        host = random.choice(["db1", "db2", "web7", "cache3"])
        line = random.choice([f"{clock:06d} {host} open conn={clock % 97}\n",
                              f"{clock:06d} {host} read {clock * 3 % 512}kb ok\n",
                              f"{clock:06d} {host} retry after {clock % 13}s\n"])
        lines.append(line)
        n -= len(line)
    return "".join(lines)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.slope = nn.Parameter(torch.logspace(-1, -3, heads))

    def forward(self, x, mem):
        b, t, d = x.shape
        ctx = self.ln1(torch.cat([mem, x], 1))
        s = ctx.shape[1]
        q = self.q(ctx[:, -t:]).view(b, t, self.h, -1).transpose(1, 2)
        k, v = self.kv(ctx).view(b, s, 2, self.h, -1).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(d // self.h)
        dist = torch.arange(t)[:, None] + (s - t) - torch.arange(s)[None, :]
        att = att - self.slope.abs()[:, None, None] * dist.clamp(min=0)
        att = att.masked_fill(dist < 0, float("-inf")).softmax(-1)
        x = x + self.o((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.ln2(x))


class CharXL(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, DIM)
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(LAYERS))
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, vocab)

    def init_mems(self, b):
        return [torch.zeros(b, 0, DIM) for _ in self.blocks]

    def forward(self, ids, mems):
        x, new_mems = self.emb(ids), []
        for block, mem in zip(self.blocks, mems):
            new_mems.append(torch.cat([mem, x], 1)[:, -MEM:].detach())
            x = block(x, mem)
        return self.head(self.ln(x)), new_mems


text = write_log(11_000)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
stream = data[: len(data) // BATCH * BATCH].view(BATCH, -1)

model = CharXL(len(chars))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 40))

step, running = 0, 0.0
for epoch in range(2):
    mems = model.init_mems(BATCH)
    for pos in range(0, stream.shape[1] - SEG - 1, SEG):
        x, y = stream[:, pos:pos + SEG], stream[:, pos + 1:pos + SEG + 1]
        logits, mems = model(x, mems)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        warmup.step()
        running += loss.item()
        step += 1
        if step % 60 == 0:
            print(f"epoch {epoch} step {step} bits/char {running / 60 / math.log(2):.3f} context {mems[0].shape[1] + SEG}")
            running = 0.0
