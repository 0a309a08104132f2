import gc
import random

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
random.seed(6)
torch.manual_seed(6)

CONFIG = {
    "n_tickets": 60_000,
    "context": 24,
    "batch": 32,
    "dim": 96,
    "steps": 260,
    "lr": 2e-3,
    "housekeeping_every": 20,
}
PRODUCTS = ["router", "modem", "switch", "phone", "camera", "printer"]
VERBS = ["fails", "restarts", "overheats", "disconnects", "freezes", "beeps"]
WHEN = ["daily", "today", "at night", "after update", "since monday", "randomly"]


def load_tickets(n):
    tickets = []
    for i in range(n):
        p = random.choice(PRODUCTS)
        v = VERBS[(PRODUCTS.index(p) + random.randrange(2)) % len(VERBS)]
        w = random.choice(WHEN)
        tickets.append(
            {
                "id": i,
                "text": f"my {p} {v} {w}. please help",
                "tags": [p, v],
                "events": [{"kind": "open", "by": [i % 97]}, {"kind": "reply", "by": [i % 31]}],
                "meta": {"lang": ["en"], "tier": {"level": i % 3}},
            }
        )
    return tickets


class CharLM(nn.Module):
    def __init__(self, n_chars, dim):
        super().__init__()
        self.emb = nn.Embedding(n_chars, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, n_chars)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def encode_batch(tickets, vocab, cfg):
    rows = []
    while len(rows) < cfg["batch"]:
        text = random.choice(tickets)["text"]
        ids = [vocab[c] for c in text]
        rows.append(ids[: cfg["context"] + 1])
    block = torch.tensor(rows)
    return block[:, :-1], block[:, 1:]


def housekeeping(step, history):
    gc.collect()
    print(f"step {step:4d} loss {sum(history[-20:]) / len(history[-20:]):.3f}")


def main(cfg):
    tickets = load_tickets(cfg["n_tickets"])
    vocab = {c: i for i, c in enumerate(sorted({c for t in tickets[:2000] for c in t["text"]}))}
    model = CharLM(len(vocab), cfg["dim"])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    history = []
    for step in range(1, cfg["steps"] + 1):
        x, y = encode_batch(tickets, vocab, cfg)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if step % cfg["housekeeping_every"] == 0:
            housekeeping(step, history)


if __name__ == "__main__":
    main(CONFIG)
