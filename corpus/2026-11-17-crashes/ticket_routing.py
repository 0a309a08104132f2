"""Routes support tickets to queues from a stream of ticket texts (bag of hashed words)."""
import random
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BUCKETS = 512
QUEUES = {
    "billing": ["invoice", "charge", "refund", "card"],
    "login": ["password", "locked", "account", "reset"],
    "shipping": ["parcel", "late", "address", "courier"],
    "returns": ["return", "broken", "label", "exchange"],
    "sales": ["offer", "quote", "bulk", "price"],
}
FILLER = ["please", "help", "hello", "today", "order", "thanks", "again", "still"]


def simulate_tickets(count, seed=5):
    rng = random.Random(seed)
    names = list(QUEUES)
    rows = []
    for i in range(count):
        if i > 900 and rng.random() < 0.05:
            queue, words = "security", ["phishing", "breach", "leak", "suspicious"]
        else:
            queue = rng.choice(names)
            words = QUEUES[queue]
        text = rng.choices(words, k=3) + rng.choices(FILLER, k=5)
        rng.shuffle(text)
        rows.append({"text": " ".join(text), "queue": queue})
    return rows


class Tickets(Dataset):
    def __init__(self, rows, queue_ids):
        self.rows = rows
        self.queue_ids = queue_ids

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        tokens = [zlib.crc32(word.encode()) % BUCKETS for word in row["text"].split()]
        target = self.queue_ids.setdefault(row["queue"], len(self.queue_ids))
        return torch.tensor(tokens), target


class Router(nn.Module):
    def __init__(self, buckets, queues, dim=24):
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, dim, mode="mean")
        self.out = nn.Linear(dim, queues)

    def forward(self, tokens):
        return self.out(torch.tanh(self.bag(tokens)))


def main():
    torch.manual_seed(3)
    rows = simulate_tickets(2000)
    queue_ids = {}
    for row in rows[:300]:
        queue_ids.setdefault(row["queue"], len(queue_ids))
    num_queues = len(queue_ids)
    print("queues:", ", ".join(queue_ids))

    loader = DataLoader(Tickets(rows, queue_ids), batch_size=20)
    model = Router(BUCKETS, num_queues)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    for epoch in range(4):
        running = 0.0
        for step, (tokens, target) in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(tokens), target)
            loss.backward()
            optimizer.step()
            running += loss.item()
            if step % 20 == 19:
                print(f"epoch {epoch} step {step + 1} loss {running / 20:.4f}")
                running = 0.0


if __name__ == "__main__":
    main()
