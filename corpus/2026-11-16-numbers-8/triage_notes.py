"""Urgency of emergency room notes: bag of short token sequences with attention pooling."""
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, VOCAB_FULL, VOCAB_KEPT = 0, 900, 420
URGENCY = 4


def write_note(rng):
    """Raw token ids of one note and its urgency class."""
    urgency = rng.randrange(URGENCY)
    length = min(30, 3 + int(rng.expovariate(1 / 12)))
    note = []
    for _ in range(length):
        if rng.random() < 0.35:
            note.append(1 + urgency * 60 + rng.randrange(60))
        else:
            # long tailed everyday language
            note.append(1 + min(VOCAB_FULL - 2, int(rng.paretovariate(0.6) * 40)))
    return note, urgency


class Notes(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = [write_note(rng) for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        note, urgency = self.items[i]
        # words outside the kept vocabulary carry no embedding
        kept = [t for t in note if t < VOCAB_KEPT]
        return torch.tensor(kept, dtype=torch.long), urgency


def collate(samples):
    tokens = pad_sequence([s[0] for s in samples], batch_first=True, padding_value=PAD)
    return tokens, torch.tensor([s[1] for s in samples])


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, x, pad):
        s = self.score(x).squeeze(-1).masked_fill(pad, float("-inf"))
        weight = torch.softmax(s, dim=1)
        return torch.einsum("bt,btd->bd", weight, x)


class NoteClassifier(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB_KEPT, dim, padding_idx=PAD)
        self.mix = nn.Conv1d(dim, dim, 3, padding=1)
        self.pool = AttentionPool(dim)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Dropout(0.1), nn.Linear(dim, URGENCY))

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + torch.relu(self.mix(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.pool(x, tokens == PAD))


class Trainer:
    def __init__(self, model, train_set, valid_set, epochs=4):
        self.model, self.epochs = model, epochs
        self.train_loader = DataLoader(train_set, batch_size=24, shuffle=True, collate_fn=collate,
                                       generator=torch.Generator().manual_seed(4))
        self.valid_loader = DataLoader(valid_set, batch_size=128, collate_fn=collate)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
        self.criterion = nn.CrossEntropyLoss()

    def fit(self):
        for epoch in range(self.epochs):
            self.model.train()
            total = 0.0
            for tokens, urgency in self.train_loader:
                loss = self.criterion(self.model(tokens), urgency)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: loss {total / len(self.train_loader):.4f} accuracy {self.validate():.3f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = count = 0
        for tokens, urgency in self.valid_loader:
            hits += (self.model(tokens).argmax(1) == urgency).sum().item()
            count += len(urgency)
        return hits / count


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(NoteClassifier(), Notes(2880, seed=13), Notes(512, seed=6)).fit()
