"""Routes support tickets to teams; keeps an audit table of what was predicted and why."""

import random

import torch
from torch import nn

torch.set_num_threads(1)
random.seed(77)
torch.manual_seed(77)

TEAMS = [f"team-{i:02d}" for i in range(40)]
VOCAB = [f"{a}{b}{c}" for a in "bdfgkl" for b in "aeiou" for c in ("n", "r", "st", "mp", "ck", "x")]
AUDIT = []


def make_ticket():
    team = random.randrange(len(TEAMS))
    topical = [VOCAB[(team * 4 + random.randrange(6)) % len(VOCAB)] for _ in range(6)]
    filler = random.choices(VOCAB, k=22)
    words = topical + filler
    random.shuffle(words)
    return " ".join(words), team


class Router(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.bag = nn.EmbeddingBag(len(VOCAB), dim, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(dim, 96), nn.Tanh(), nn.Linear(96, len(TEAMS)))

    def forward(self, ids):
        return self.mlp(self.bag(ids))


def collate(tickets, index):
    texts = [t for t, _ in tickets]
    ids = torch.tensor([[index[w] for w in t.split()] for t in texts])
    return texts, ids, torch.tensor([team for _, team in tickets])


def audit_rows(step, texts, probs, labels):
    for text, row, label in zip(texts, probs.tolist(), labels.tolist()):
        ranked = sorted(zip(TEAMS, row), key=lambda item: -item[1])
        yield {
            "step": step,
            "text": text,
            "scores": {team: round(p, 4) for team, p in ranked},
            "label": TEAMS[label],
            "ok": ranked[0][0] == TEAMS[label],
        }


def main(steps=200, batch=160):
    index = {w: i for i, w in enumerate(VOCAB)}
    model = Router()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(steps):
        texts, ids, labels = collate([make_ticket() for _ in range(batch)], index)
        logits = model(ids)
        loss = loss_fn(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AUDIT.extend(audit_rows(step, texts, logits.detach().softmax(1), labels))
        if step % 40 == 39:
            recent = AUDIT[-5 * batch :]
            rate = sum(row["ok"] for row in recent) / len(recent)
            print(f"step {step + 1}: loss {loss.item():.3f} routed correctly {rate:.2f}")
    worst = min(AUDIT[-batch:], key=lambda row: row["scores"][row["label"]])
    print("hardest ticket:", worst["text"][:50], "->", worst["label"])


if __name__ == "__main__":
    main()
