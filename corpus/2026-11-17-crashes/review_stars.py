"""Predicts star ratings of reviews with a transformer encoder, mixed precision on the CPU."""
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

GOOD = ["great", "lovely", "perfect", "sturdy", "fast"]
BAD = ["broken", "awful", "slow", "cheap", "late"]
NEUTRAL = ["the", "box", "arrived", "it", "was", "and", "very", "with", "a", "colour"]
WORDS = {w: i + 1 for i, w in enumerate(GOOD + BAD + NEUTRAL)}


def make_reviews(count, seed):
    rng = random.Random(seed)
    reviews = []
    for _ in range(count):
        stars = rng.randrange(5)
        words = rng.choices(NEUTRAL, k=rng.randint(4, 10))
        words += rng.choices(GOOD, k=stars) + rng.choices(BAD, k=4 - stars)
        rng.shuffle(words)
        reviews.append((torch.tensor([WORDS[w] for w in words]), stars))
    return reviews


def collate(batch):
    tokens = pad_sequence([t for t, _ in batch], batch_first=True)
    return tokens, torch.tensor([s for _, s in batch])


class StarModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS) + 1, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 5)

    def forward(self, tokens):
        pad = tokens == 0
        h = self.encoder(self.embed(tokens), src_key_padding_mask=pad)
        h = h.masked_fill(pad.unsqueeze(-1), 0.0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.head(h)


def quadratic_kappa(truth, scores):
    guess = scores.argmax(axis=1)
    confusion = np.zeros((5, 5))
    np.add.at(confusion, (truth, guess), 1)
    grid = np.arange(5)
    penalty = (grid[:, None] - grid[None, :]) ** 2
    expected = np.outer(confusion.sum(1), confusion.sum(0)) / confusion.sum()
    return 1 - (penalty * confusion).sum() / (penalty * expected).sum()


def evaluate(model, loader):
    model.eval()
    truth, scores = [], []
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for tokens, stars in loader:
            truth.append(stars.numpy())
            scores.append(model(tokens).detach().numpy())
    return quadratic_kappa(np.concatenate(truth), np.concatenate(scores))


def main():
    torch.manual_seed(13)
    train = DataLoader(make_reviews(640, 1), batch_size=32, shuffle=True, collate_fn=collate)
    test = DataLoader(make_reviews(128, 2), batch_size=32, collate_fn=collate)
    model = StarModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(3):
        model.train()
        for tokens, stars in train:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(tokens), stars)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} kappa {evaluate(model, test):.3f}")


if __name__ == "__main__":
    main()
