"""Character model on a stream of forum posts; reposts are skipped."""

import random

import torch
from torch import nn

torch.set_num_threads(1)
ALPHABET = "abcdefghijklmnopqrstuvwxyz "
INDEX = {c: i for i, c in enumerate(ALPHABET)}
WORDS = "the a new old fast quiet board sensor engine driver cable update works fails after".split()


def posts(seed):
    rng = random.Random(seed)
    recent = []
    while True:
        if recent and rng.random() < 0.1:
            yield rng.choice(recent)
            continue
        text = " ".join(rng.choices(WORDS, k=9)) + " " + "".join(rng.choices(ALPHABET, k=8))
        recent.append(text)
        del recent[:-500]
        yield text


def fresh_posts(source, history):
    for text in source:
        if text not in history:
            history.append(text)
            yield text


def encode(text, length=40):
    return torch.tensor([INDEX[c] for c in text[:length].ljust(length)])


class CharModel(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 24)
        self.rnn = nn.GRU(24, width, batch_first=True)
        self.out = nn.Linear(width, len(ALPHABET))

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def main(steps=210, batch=96):
    torch.manual_seed(0)
    model = CharModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    history = []
    stream = fresh_posts(posts(seed=12), history)
    average = 3.3
    step = 0
    while step < steps:
        texts = [next(stream) for _ in range(batch)]
        block = torch.stack([encode(text) for text in texts])
        logits = model(block[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average = 0.95 * average + 0.05 * loss.item()
        step += 1
        if step % 40 == 0:
            print(f"step {step} loss {average:.3f} posts read {len(history)}")


if __name__ == "__main__":
    main()
