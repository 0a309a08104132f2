"""Predict a stability score of short RNA strands from sequence and pairing count."""

import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

BASES = "ACGU"
PAIRS = {("A", "U"), ("U", "A"), ("G", "C"), ("C", "G"), ("G", "U"), ("U", "G")}


def max_pairs(seq, min_gap=3):
    n = len(seq)
    best = [[0] * n for _ in range(n)]
    for span in range(min_gap + 1, n):
        for i in range(n - span):
            j = i + span
            score = max(best[i + 1][j], best[i][j - 1])
            if (seq[i], seq[j]) in PAIRS:
                score = max(score, best[i + 1][j - 1] + 1)
            for k in range(i + min_gap + 1, j - min_gap):
                score = max(score, best[i][k] + best[k + 1][j])
            best[i][j] = score
    return best[0][n - 1]


class StrandStream(IterableDataset):
    def __init__(self, count, seed):
        self.count = count
        self.seed = seed

    def __iter__(self):
        rng = random.Random(self.seed)
        for _ in range(self.count):
            length = rng.randint(78, 92) if rng.random() < 0.03 else rng.randint(9, 15)
            seq = "".join(rng.choice(BASES) for _ in range(length))
            paired = max_pairs(seq) / length
            gc = sum(base in "GC" for base in seq) / length
            tokens = [BASES.index(base) + 1 for base in seq[:48]]
            tokens += [0] * (48 - len(tokens))
            yield torch.tensor(tokens), torch.tensor([paired]), torch.tensor(gc + 0.8 * paired)


class StabilityNet(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.embed = nn.Embedding(5, dim, padding_idx=0)
        self.encoder = nn.GRU(dim, 48, batch_first=True)
        self.out = nn.Sequential(nn.Linear(49, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, tokens, extra):
        hidden, _ = self.encoder(self.embed(tokens))
        mask = (tokens > 0).unsqueeze(-1)
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return self.out(torch.cat([pooled, extra], dim=1)).squeeze(1)


def run(config):
    torch.manual_seed(config["seed"])
    model = StabilityNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    loader = DataLoader(StrandStream(config["strands"], config["seed"]), config["batch"])
    average = None
    for step, (tokens, extra, target) in enumerate(loader):
        prediction = model(tokens, extra)
        loss = (prediction - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        average = value if average is None else 0.95 * average + 0.05 * value
        if step % 30 == 0:
            print(f"step {step:4d} mse {average:.4f}")
    print(f"final mse {average:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run({"seed": 5, "lr": 3e-3, "strands": 3360, "batch": 24})
