"""Word-level LSTM language model on sentences of a toy grammar, variable length, own clipping."""

import random

import torch
import torch.nn as nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

torch.set_num_threads(1)
torch.manual_seed(1111)
rng = random.Random(1111)

NOUNS = ["dog", "cat", "bird", "king", "river", "stone", "child", "ship"]
VERBS = ["sees", "likes", "follows", "eats", "finds"]
ADJ = ["old", "red", "small", "quiet", "very"]


def noun_phrase(depth):
    out = ["the"]
    for _ in range(rng.choice([0, 0, 1, 2])):
        out.append(rng.choice(ADJ))
    out.append(rng.choice(NOUNS))
    if depth < 4 and rng.random() < 0.35:
        out += ["that"] + verb_phrase(depth + 1)
    return out


def verb_phrase(depth):
    return [rng.choice(VERBS)] + noun_phrase(depth)


def sentence():
    words = noun_phrase(0) + verb_phrase(0)
    while rng.random() < 0.2:
        words += ["and"] + noun_phrase(0) + verb_phrase(0)
    return ["<s>"] + words + ["</s>"]


vocab = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "the", "that", "and"])}
for w in NOUNS + VERBS + ADJ:
    vocab[w] = len(vocab)
train = [torch.tensor([vocab[w] for w in sentence()]) for _ in range(1250)]
valid = [torch.tensor([vocab[w] for w in sentence()]) for _ in range(120)]


class LM(nn.Module):
    def __init__(self, n, size=48):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.embed = nn.Embedding(n, size, padding_idx=0)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.decoder = nn.Linear(size, n)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(
            self.drop(self.embed(x)), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.decoder(self.drop(out))


def loss_on(model, sents):
    padded = pad_sequence(sents, batch_first=True)
    lengths = torch.tensor([len(s) - 1 for s in sents])
    logits = model(padded[:, :-1], lengths)
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), padded[:, 1:].flatten(), ignore_index=0
    )


model = LM(len(vocab))
lr = 4.0
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
best = None

for epoch in range(4):
    model.train()
    rng.shuffle(train)
    for i in range(0, len(train), 10):
        optimizer.zero_grad()
        loss = loss_on(model, train[i : i + 10])
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val = loss_on(model, valid).item()
    print(f"epoch {epoch} lr {lr} valid {val:.4f}")
    if best is None or val < best:
        best = val
    else:
        lr /= 4.0
        for group in optimizer.param_groups:
            group["lr"] = lr

print("final", val)
