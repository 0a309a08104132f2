import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributions import Categorical


@dataclass
class Settings:
    vocab: int = 480
    width: int = 64
    length: int = 24
    batch: int = 10
    steps: int = 180
    lr: float = 4e-3
    report_every: int = 45
    seed: int = 11


@dataclass
class StepOutput:
    step: int
    loss: float
    grad_norm: float
    extras: dict = field(default_factory=dict)


class Block(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        y = self.ln1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.length, cfg.width))
        self.blocks = nn.ModuleList(Block(cfg.width) for _ in range(2))
        self.out = nn.Linear(cfg.width, cfg.vocab)
        mask = torch.triu(torch.full((cfg.length, cfg.length), float("-inf")), 1)
        self.register_buffer("mask", mask)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        for block in self.blocks:
            h = block(h, self.mask)
        return self.out(h)


def corpus(cfg, gen):
    """Endless batches from a sparse random Markov chain."""
    succ = torch.randint(0, cfg.vocab, (cfg.vocab, 4), generator=gen)
    while True:
        seq = torch.empty(cfg.batch, cfg.length + 1, dtype=torch.long)
        seq[:, 0] = torch.randint(0, cfg.vocab, (cfg.batch,), generator=gen)
        for t in range(cfg.length):
            pick = torch.randint(0, 4, (cfg.batch,), generator=gen)
            seq[:, t + 1] = succ[seq[:, t], pick]
        yield seq[:, :-1], seq[:, 1:]


class Tuner:
    """Language-model tuning with advantage-like token weights."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.model = TinyLM(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.outputs = []

    def forward_pass(self, ids, labels):
        policy = Categorical(logits=self.model(ids))
        logp = policy.log_prob(labels)
        weights = torch.linspace(0.8, 1.2, labels.shape[1])
        extras = {
            "seq_logp": logp.detach().sum(1),
            "seq_entropy": policy.entropy().mean(1),
        }
        return -(weights * logp).mean(), extras

    def train_step(self, step, batch):
        loss, extras = self.forward_pass(*batch)
        self.opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.outputs.append(StepOutput(step, loss.item(), norm.item(), extras))

    def summary(self, last):
        chunk = self.outputs[-last:]
        loss = sum(o.loss for o in chunk) / len(chunk)
        ent = torch.cat([o.extras["seq_entropy"] for o in chunk]).mean().item()
        worst = min(o.extras["seq_logp"].min().item() for o in chunk)
        return f"loss {loss:.3f}  ppl {math.exp(loss):7.1f}  entropy {ent:.3f}  worst sequence {worst:.1f}"

    def run(self, stream):
        for step in range(self.cfg.steps):
            self.train_step(step, next(stream))
            if (step + 1) % self.cfg.report_every == 0:
                print(f"[{step + 1:3d}] {self.summary(self.cfg.report_every)}")
        print("overall:", self.summary(self.cfg.steps))


def main():
    cfg = Settings()
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    Tuner(cfg).run(corpus(cfg, gen))


main()
