"""New words were added to the vocabulary, their embedding rows never filled: NaN weights.

Kind of report: "after resizing the embedding the loss is nan as soon as a new token appears".
The table is made with torch.empty and only the old rows are copied; deterministic mode fills the
rest with NaN. The weight is bad from the first step (0); the loss shows it only when a document
with a new word comes up, at step 6. Nothing can be saved here, only noticed.
"""
# expect: none-saved
# poisoned-steps: [0]
# category: NUM003

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

OLD_VOCAB = 300
NEW_VOCAB = 320
PAD = 0


def make_documents(rng):
    docs = []
    for i in range(960):
        length = rng.randint(5, 18)
        label = rng.randint(0, 1)
        low, high = (1, 180) if label else (120, OLD_VOCAB - 1)
        words = [rng.randint(low, high) for _ in range(length)]
        if i >= 6 * 16 and i % 40 == 0:
            words[rng.randrange(length)] = rng.randint(OLD_VOCAB, NEW_VOCAB - 1)
        docs.append((words, label))
    docs[6 * 16 + 1][0][0] = OLD_VOCAB + 3
    return docs


def collate(samples):
    words = pad_sequence([torch.tensor(w) for w, _ in samples], True, PAD)
    lengths = torch.tensor([len(w) for w, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    return words, lengths, labels


class Classifier(nn.Module):
    def __init__(self, dim=48, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(OLD_VOCAB, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2)

    def grow(self, size):
        weight = torch.empty(size, self.embedding.embedding_dim)
        weight[: self.embedding.num_embeddings] = self.embedding.weight.data
        self.embedding = nn.Embedding(size, weight.size(1), padding_idx=PAD, _weight=weight)

    def forward(self, words, lengths):
        states, _ = self.gru(self.embedding(words))
        last = states[torch.arange(len(words)), lengths - 1]
        return self.out(last)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    docs = make_documents(random.Random(0))
    loader = DataLoader(docs, batch_size=16, collate_fn=collate)
    model = Classifier()
    model.grow(NEW_VOCAB)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (words, lengths, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(words, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 10 == 0 or step == 5:
            print(f"step {step}: {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
