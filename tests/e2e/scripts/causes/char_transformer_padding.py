"""One-layer transformer that tells which of a few generators wrote a string.

Strings are sorted by length first so that batches need as little padding as possible.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0
N_SYMBOLS = 12
N_SOURCES = 3
D_MODEL = 32
HEADS = 4


def make_corpus(n=200):
    corpus = []
    for k in range(n):
        source = k % N_SOURCES
        length = 14 if k < 110 else int(torch.randint(5, 14, (1,)))
        steps = torch.randint(0, 2, (length,)) + source
        corpus.append((1 + (torch.cumsum(steps, 0) % N_SYMBOLS), source))
    order = torch.randperm(n).tolist()
    return [corpus[i] for i in order]


def batches(corpus, size):
    corpus = sorted(corpus, key=lambda item: len(item[0]), reverse=True)
    for i in range(0, len(corpus), size):
        part = corpus[i : i + size]
        lengths = torch.tensor([len(s) for s, _ in part])
        ids = torch.full((len(part), int(lengths.max())), PAD)
        for row, (s, _) in zip(ids, part):
            row[: len(s)] = s
        yield ids, lengths, torch.tensor([c for _, c in part])


def attention_bias(lengths, max_len):
    """Additive bias for the scores, (B, 1, 1, T), or None when nothing is padded."""
    if int(lengths.min()) == max_len:
        return None
    keep = (torch.arange(max_len) < lengths.unsqueeze(1)).float()
    bias = (1.0 - keep) * float("-inf")
    return bias[:, None, None, :]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(N_SYMBOLS + 1, D_MODEL)
        self.pos = nn.Embedding(32, D_MODEL)
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.proj = nn.Linear(D_MODEL, D_MODEL)
        self.ln1 = nn.LayerNorm(D_MODEL)
        self.ln2 = nn.LayerNorm(D_MODEL)
        self.mlp = nn.Sequential(nn.Linear(D_MODEL, 64), nn.GELU(), nn.Linear(64, D_MODEL))
        self.cls = nn.Linear(D_MODEL, N_SOURCES)

    def forward(self, ids, lengths):
        b, t = ids.shape
        x = self.tok(ids) + self.pos(torch.arange(t))
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / math.sqrt(k.size(-1))
        bias = attention_bias(lengths, t)
        if bias is not None:
            att = att + bias
        att = att.softmax(dim=-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, D_MODEL))
        x = x + self.mlp(self.ln2(x))
        return self.cls(x[:, 0])


def run():
    torch.manual_seed(31)
    corpus = make_corpus()
    model = Encoder()
    epochs, size = 4, 10
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        opt, max_lr=4e-3, epochs=epochs, steps_per_epoch=math.ceil(len(corpus) / size)
    )
    it = 0
    for epoch in range(epochs):
        for ids, lengths, label in batches(corpus, size):
            loss = F.cross_entropy(model(ids, lengths), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if it % 5 == 0:
                print(f"{epoch}/{it} loss={loss.item():.4f} lr={sched.get_last_lr()[0]:.1e}")
            it += 1


if __name__ == "__main__":
    run()
