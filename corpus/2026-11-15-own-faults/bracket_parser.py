"""A sentiment model that tokenizes its texts in the training loop."""
import random
import re

import torch
from torch import nn

WORDS = [f"word{i}" for i in range(2000)]


def tokenize(text):
    ids = []
    for token in re.findall(r"\w+|[^\w\s]", text.lower()):
        if token in WORDS:
            ids.append(WORDS.index(token))
    return ids[:48]


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(2000, 64)
        self.out = nn.Linear(64, 2)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets))


def run():
    random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    corpus = [(" ".join(random.choices(WORDS, k=40)) + " .", random.randrange(2)) for _ in range(200)]
    model = Bag()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(100):
        picked = random.sample(corpus, 16)
        rows = [tokenize(text) for text, _ in picked]
        offsets = torch.tensor([0] + [len(r) for r in rows[:-1]]).cumsum(0)
        ids = torch.tensor([i for r in rows for i in r])
        loss = nn.functional.cross_entropy(model(ids, offsets), torch.tensor([y for _, y in picked]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


run()
