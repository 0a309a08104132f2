import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab=256, dim=64, heads=4, layers=2, context=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return self.head(self.blocks(x))


class LMTrainer:
    def __init__(self, train_ids, dev_ids, context=48, batch=12, max_steps=200, eval_every=40):
        self.train_ids, self.dev_ids = train_ids, dev_ids
        self.context, self.batch = context, batch
        self.max_steps, self.eval_every = max_steps, eval_every
        self.model = TinyLM(context=context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.best = float("inf")

    def windows(self, ids, starts):
        block = torch.stack([ids[s : s + self.context + 1] for s in starts])
        return block[:, :-1], block[:, 1:]

    def loss_on(self, ids, starts):
        x, y = self.windows(ids, starts)
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def perplexity(self):
        self.model.eval()
        total, batches = 0.0, 0
        offsets = torch.arange(0, len(self.dev_ids) - self.context - 1, self.context)
        for starts in offsets.split(self.batch):
            total += self.loss_on(self.dev_ids, starts)
            batches += 1
        self.model.train()
        return math.exp((total / batches).item())

    def train(self):
        step = 0
        while step < self.max_steps:
            starts = torch.randint(0, len(self.train_ids) - self.context - 1, (self.batch,))
            loss = self.loss_on(self.train_ids, starts)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            step += 1
            if step % self.eval_every == 0:
                ppl = self.perplexity()
                self.best = min(self.best, ppl)
                print(f"step {step} train {loss.item():.3f} dev ppl {ppl:.2f} best {self.best:.2f}")


def markov_ids(n, vocab, seed):
    gen = torch.Generator().manual_seed(seed)
    table = torch.randint(0, vocab, (vocab, 4), generator=torch.Generator().manual_seed(99))
    picks = torch.randint(0, 4, (n,), generator=gen).tolist()
    ids, table = [0], table.tolist()
    for p in picks:
        ids.append(table[ids[-1]][p])
    return torch.tensor(ids)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(9)
    LMTrainer(markov_ids(40000, 256, seed=1), markov_ids(9000, 256, seed=2)).train()
