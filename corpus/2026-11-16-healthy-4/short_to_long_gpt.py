import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)

VOCAB, D_MODEL, MAX_LEN = 64, 96, 128


class Block(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D_MODEL)
        self.pos = nn.Embedding(MAX_LEN, D_MODEL)
        self.blocks = nn.ModuleList(Block(D_MODEL) for _ in range(layers))
        self.norm = nn.LayerNorm(D_MODEL)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tok.weight.T / math.sqrt(D_MODEL)


class Callback:
    def on_step(self, run):
        pass


class LengthWarmup(Callback):
    def __init__(self, start, final, over, stride=16):
        self.start, self.final, self.over, self.stride = start, final, over, stride

    def on_step(self, run):
        frac = min(1.0, run.step / self.over)
        length = self.start + (self.final - self.start) * frac
        run.seq_len = int(length) // self.stride * self.stride


class SaveWeights(Callback):
    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def on_step(self, run):
        if run.step and run.step % self.every == 0:
            torch.save(run.model.state_dict(), os.path.join(self.folder, "last.pt"))


class Printer(Callback):
    def __init__(self, every):
        self.every = every

    def on_step(self, run):
        if run.step and run.step % self.every == 0:
            mean = sum(run.losses[-self.every :]) / self.every
            print(f"step {run.step:4d} length {run.seq_len:3d} loss {mean:.3f}")


class Run:
    def __init__(self, model, stream, callbacks, batch=8):
        self.model, self.stream, self.callbacks, self.batch = model, stream, callbacks, batch
        self.opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
        self.step, self.seq_len, self.losses = 0, 16, []

    def fit(self, steps):
        while self.step < steps:
            for cb in self.callbacks:
                cb.on_step(self)
            at = torch.randint(0, len(self.stream) - self.seq_len - 1, (self.batch, 1))
            chunk = self.stream[at + torch.arange(self.seq_len + 1)]
            logits = self.model(chunk[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.losses.append(loss.item())
            self.step += 1
        for cb in self.callbacks:
            cb.on_step(self)


def corpus(n=60_000):
    rows = torch.distributions.Dirichlet(torch.full((VOCAB,), 0.05)).sample((VOCAB,))
    picks = torch.multinomial(rows, n // VOCAB * 2, replacement=True).tolist()
    ids, cur, used = [], 0, [0] * VOCAB
    while len(ids) < n:
        ids.append(cur)
        used[cur] = (used[cur] + 1) % len(picks[cur])
        cur = picks[cur][used[cur]]
    return torch.tensor(ids)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [LengthWarmup(16, MAX_LEN, over=190), SaveWeights(folder, 120), Printer(60)]
        Run(GPT(), corpus(), callbacks).fit(360)
