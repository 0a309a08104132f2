"""Sequence tagger (BiGRU) for entity spans in synthetic sentences."""

from dataclasses import dataclass, field

import torch
from torch import nn

torch.set_num_threads(1)
PAD_TAG = -100


@dataclass
class TagMeter:
    n_tags: int
    hits: list = field(default_factory=list)
    totals: list = field(default_factory=list)

    def __post_init__(self):
        self.hits = [0] * self.n_tags
        self.totals = [0] * self.n_tags

    def update(self, predicted, gold):
        for b in range(gold.shape[0]):
            for s in range(gold.shape[1]):
                tag = gold[b, s].item()
                if tag == PAD_TAG:
                    continue
                self.totals[tag] += 1
                self.hits[tag] += int(predicted[b, s].item() == tag)

    def recall(self):
        return [round(h / max(t, 1), 2) for h, t in zip(self.hits, self.totals)]


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=32, hidden=28):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, tokens):
        return self.out(self.gru(self.embed(tokens))[0])


def sentences(n, vocab, tags, length=26):
    tokens = torch.randint(0, vocab, (n, length))
    gold = (tokens + tokens.roll(1, dims=1) % 2) % tags
    real = torch.randint(length // 2, length + 1, (n, 1))
    gold[torch.arange(length)[None] >= real] = PAD_TAG
    return tokens, gold


def fit(vocab=120, tags=5, epochs=4, batch=48):
    torch.manual_seed(6)
    tokens, gold = sentences(1920, vocab, tags)
    model = Tagger(vocab, tags)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD_TAG)
    for epoch in range(epochs):
        meter = TagMeter(tags)
        for chunk in torch.randperm(len(tokens)).split(batch):
            logits = model(tokens[chunk])
            loss = criterion(logits.transpose(1, 2), gold[chunk])
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter.update(logits.argmax(-1), gold[chunk])
        print(f"epoch {epoch} loss {loss.item():.3f} recall per tag {meter.recall()}")


fit()
