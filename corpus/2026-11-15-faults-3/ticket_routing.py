import random
import re

import torch
from torch import nn

torch.set_num_threads(1)
random.seed(17)
torch.manual_seed(17)

QUEUES = ["billing", "network", "hardware", "account"]
WORDS = {
    "billing": "invoice refund charge payment card receipt amount".split(),
    "network": "router wifi latency packet cable signal dropout".split(),
    "hardware": "screen battery keyboard fan charger hinge noise".split(),
    "account": "password login email reset locked profile token".split(),
}
FILLER = "the my is please again since with after today it was and has been very often".split()


def write_ticket():
    queue = random.randrange(4)
    pool = WORDS[QUEUES[queue]]
    words = [random.choice(pool if random.random() < 0.2 else FILLER) for _ in range(90)]
    return " ".join(words).capitalize() + ".", queue


tickets = [write_ticket() for _ in range(1500)]
vocab = {
    w: i + 1 for i, w in enumerate(sorted({w for ws in WORDS.values() for w in ws} | set(FILLER)))
}
N_BUCKETS = 4096


def encode(text, max_len=180):
    tokens = re.findall(r"[a-z]+", text.lower())
    ids = [vocab.get(t, 0) for t in tokens]
    for a, b in zip(tokens, tokens[1:]):
        code = 7
        for ch in a + "_" + b:
            code = (code * 31 + ord(ch)) % N_BUCKETS
        ids.append(len(vocab) + 1 + code)
    return ids[:max_len] + [0] * (max_len - len(ids))


class Router(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.table = nn.Embedding(len(vocab) + 1 + N_BUCKETS, dim, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, len(QUEUES)))

    def forward(self, ids):
        return self.mlp(self.table(ids).mean(1))


router = Router()
opt = torch.optim.Adam(router.parameters(), lr=3e-3)
for step in range(220):
    chosen = random.sample(tickets, 64)
    ids = torch.tensor([encode(text) for text, _ in chosen])
    target = torch.tensor([queue for _, queue in chosen])
    scores = router(ids)
    loss = nn.functional.cross_entropy(scores, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 20 == 0:
        acc = (scores.argmax(-1) == target).float().mean()
        print(f"{step + 1:4d} loss {loss.item():.3f} acc {acc:.2f}")
