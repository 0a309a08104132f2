"""Routes support tickets to teams: word-piece convnet, no loader, plain index batches."""

import random

import torch
from torch import nn

torch.set_num_threads(1)
random.seed(4)
torch.manual_seed(4)

TEAMS = ["billing", "network", "hardware", "accounts", "shipping"]
STEMS = {
    "billing": ["invoice", "refund", "payment", "charge", "subscription"],
    "network": ["router", "latency", "disconnect", "bandwidth", "wireless"],
    "hardware": ["keyboard", "battery", "overheat", "monitor", "charger"],
    "accounts": ["password", "login", "permission", "username", "locked"],
    "shipping": ["parcel", "courier", "delivery", "tracking", "warehouse"],
}
FILLER = ["customer", "yesterday", "please", "problem", "regarding", "completely", "happened"]
ENDINGS = ["", "s", "ing", "ed", "able", "ment", "ations"]


def write_ticket():
    team = random.randrange(len(TEAMS))
    own, every = STEMS[TEAMS[team]], sum(STEMS.values(), [])
    words = []
    for _ in range(random.randint(80, 120)):
        pool = own if random.random() < 0.1 else FILLER if random.random() < 0.7 else every
        words.append(random.choice(pool) + random.choice(ENDINGS))
    return " ".join(words), team


class WordPieces:
    def __init__(self, texts, size=400):
        counts = {}
        for text in texts[:300]:
            for word in text.split():
                for length in (1, 2, 3, 4):
                    for i in range(len(word) - length + 1):
                        piece = word[i : i + length]
                        counts[piece] = counts.get(piece, 0) + length
        ranked = sorted(counts, key=counts.get, reverse=True)[:size]
        self.ids = {piece: i + 2 for i, piece in enumerate(ranked)}

    def encode_word(self, word):
        pieces, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start and word[start:end] not in self.ids:
                end -= 1
            pieces.append(self.ids.get(word[start:end], 1))
            start = max(end, start + 1)
        return pieces

    def encode(self, text, limit=128):
        ids = [i for word in text.lower().split() for i in self.encode_word(word)][:limit]
        return ids + [0] * (limit - len(ids))


class Router(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24, padding_idx=0)
        self.mix = nn.Conv1d(24, 40, 5, padding=2)
        self.out = nn.Linear(40, len(TEAMS))

    def forward(self, ids):
        x = torch.relu(self.mix(self.embed(ids).transpose(1, 2)))
        return self.out(x.amax(dim=2))


tickets = [write_ticket() for _ in range(1200)]
tokenizer = WordPieces([text for text, _ in tickets])
model = Router(len(tokenizer.ids) + 2)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
batch_size = 48

for epoch in range(7):
    order = torch.randperm(len(tickets)).tolist()
    losses = []
    for first in range(0, len(order), batch_size):
        chosen = [tickets[i] for i in order[first : first + batch_size]]
        ids = torch.tensor([tokenizer.encode(text) for text, _ in chosen])
        teams = torch.tensor([team for _, team in chosen])
        loss = nn.functional.cross_entropy(model(ids), teams)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
