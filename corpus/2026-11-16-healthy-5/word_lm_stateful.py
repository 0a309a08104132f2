"""Word language model with a carried LSTM state and randomised back-propagation windows (AWD-LSTM style)."""
import argparse
import math
import random

import torch
from torch import nn


class Vocabulary:
    def __init__(self):
        self.index = {}

    def add(self, word):
        return self.index.setdefault(word, len(self.index))

    def __len__(self):
        return len(self.index)


def compose_story(n_words, rng):
    """Paragraphs about one place each; the place decides which nouns appear until the next paragraph."""
    places = [f"place{i}" for i in range(14)]
    nouns = {p: [f"{p}_thing{j}" for j in range(10)] for p in places}
    verbs = ["meets", "finds", "paints", "leaves", "sells", "hides"]
    words = []
    while len(words) < n_words:
        place = rng.choice(places)
        words += ["in", place, ":"]
        for _ in range(rng.randint(4, 14)):
            words += [rng.choice(nouns[place]), rng.choice(verbs), rng.choice(nouns[place]), "."]
    return words[:n_words]


class LanguageModel(nn.Module):
    def __init__(self, vocab, emb=64, hidden=96, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb)
        self.drop = nn.Dropout(0.1)
        self.lstm = nn.LSTM(emb, hidden, layers, dropout=0.1)
        self.project = nn.Linear(hidden, emb)
        self.decode = nn.Linear(emb, vocab)
        self.decode.weight = self.embed.weight
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, tokens, state):
        out, state = self.lstm(self.drop(self.embed(tokens)), state)
        return self.decode(self.project(self.drop(out))), state


def columns(ids, width):
    n = len(ids) // width
    return ids[: n * width].view(width, n).t().contiguous()


def detach(state):
    return tuple(s.detach() for s in state)


@torch.no_grad()
def perplexity(model, data, window=35):
    model.eval()
    state, total, count = None, 0.0, 0
    for i in range(0, len(data) - 1, window):
        n = min(window, len(data) - 1 - i)
        logits, state = model(data[i:i + n], state)
        total += n * nn.functional.cross_entropy(logits.flatten(0, 1), data[i + 1:i + 1 + n].flatten()).item()
        count += n
    model.train()
    return math.exp(total / count)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--bptt", type=int, default=24)
    ap.add_argument("--width", type=int, default=12)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(6)
    rng = random.Random(6)

    vocab = Vocabulary()
    ids = torch.tensor([vocab.add(w) for w in compose_story(11000, rng)])
    valid = columns(torch.tensor([vocab.add(w) for w in compose_story(700, rng)]), 10)
    train = columns(ids, args.width)
    model = LanguageModel(len(vocab))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.5, 0.99))
    step = 0
    for epoch in range(args.epochs):
        state, i, seen = None, 0, []
        while i < len(train) - 2:
            base = args.bptt if rng.random() < 0.9 else args.bptt // 2
            n = min(max(5, int(rng.gauss(base, 5))), len(train) - 1 - i)
            for group in opt.param_groups:
                group["lr"] = args.lr * n / args.bptt
            if state is not None:
                state = detach(state)
            logits, state = model(train[i:i + n], state)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), train[i + 1:i + 1 + n].flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            seen.append(loss.item())
            i += n
            step += 1
        print(f"epoch {epoch} step {step} train ppl {math.exp(sum(seen) / len(seen)):.2f} "
              f"valid ppl {perplexity(model, valid):.2f}")


if __name__ == "__main__":
    main()
