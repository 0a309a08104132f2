from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)

VOCAB, DIM, WINDOW, NEG, BATCH = 20_000, 32, 3, 8, 160
STEPS = 150


def synth_recipes(n_recipes=2500, length=30, topics=40):
    """Ingredient/verb id sequences; every recipe sticks to one cuisine."""
    recipes = []
    ranks = 1.0 / np.arange(1, VOCAB // topics + 1) ** 1.05
    ranks /= ranks.sum()
    for _ in range(n_recipes):
        cuisine = rng.integers(topics)
        words = rng.choice(len(ranks), size=length, p=ranks)
        recipes.append(words * topics + cuisine)
    return recipes


recipes = synth_recipes()
counts = Counter(int(w) for r in recipes for w in r)
freq = np.array([counts.get(i, 0) + 1e-3 for i in range(VOCAB)])
unigram = freq**0.75
unigram /= unigram.sum()


def skipgram_pairs():
    while True:
        for r in rng.permutation(len(recipes)):
            words = recipes[r]
            for i, center in enumerate(words):
                span = int(rng.integers(1, WINDOW + 1))
                for j in range(max(0, i - span), min(len(words), i + span + 1)):
                    if j != i:
                        yield int(center), int(words[j])


def skipgram_batches(batch_size):
    centers, contexts, negatives = [], [], []
    for center, context in skipgram_pairs():
        centers.append(center)
        contexts.append(context)
        negatives.append(rng.choice(VOCAB, size=NEG, p=unigram))
        if len(centers) == batch_size:
            yield (
                torch.tensor(centers),
                torch.tensor(contexts),
                torch.from_numpy(np.stack(negatives)),
            )
            centers, contexts, negatives = [], [], []


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Embedding(VOCAB, DIM)
        self.out = nn.Embedding(VOCAB, DIM)
        nn.init.uniform_(self.inp.weight, -0.5 / DIM, 0.5 / DIM)
        nn.init.zeros_(self.out.weight)

    def forward(self, center, context, negative):
        c = self.inp(center)
        pos = (c * self.out(context)).sum(-1)
        neg = torch.einsum("bd,bkd->bk", c, self.out(negative))
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(-1)).mean()


model = SkipGram()
opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
smooth = None
for step, (center, context, negative) in enumerate(skipgram_batches(BATCH)):
    loss = model(center, context, negative)
    opt.zero_grad()
    loss.backward()
    opt.step()
    smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
    if step % 25 == 0:
        print(f"step {step:4d}  nce {smooth:.3f}")
    if step + 1 == STEPS:
        break
print("final", round(smooth, 3))
