"""Supervised fine-tuning of a toy language model; the loss only counts the answer tokens."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

IGNORE = -100
MAX_LEN = 24
VOCAB = 30
EOS = 1


class Dialogues(Dataset):
    """(prompt, answer) pairs: the answer repeats the last prompt tokens backwards."""

    def __init__(self, n=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.pairs = []
        for i in range(n):
            length = int(torch.randint(5, 16, (1,), generator=g))
            if i == 29:
                length = 31
            prompt = torch.randint(2, VOCAB, (length,), generator=g)
            answer = torch.cat([prompt[-4:].flip(0), torch.tensor([EOS])])
            self.pairs.append((prompt, answer))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        prompt, answer = self.pairs[i]
        ids = torch.cat([prompt, answer])
        labels = torch.cat([torch.full_like(prompt, IGNORE), answer])
        return ids[:MAX_LEN], labels[:MAX_LEN]


class TinyLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        out, _ = self.gru(self.emb(ids))
        return self.head(out)


def loss_for(model, ids, labels):
    logits = model(ids)[:, :-1]
    targets = labels[:, 1:]
    return nn.functional.cross_entropy(
        logits.reshape(-1, VOCAB),
        targets.reshape(-1),
        ignore_index=IGNORE,
    )


def train(epochs=3, accumulate=4):
    torch.manual_seed(8)
    loader = DataLoader(Dialogues(), batch_size=1, shuffle=True)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    lr_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
    updates, total = 0, 0.0
    for _ in range(epochs):
        for micro, (ids, labels) in enumerate(loader, start=1):
            loss = loss_for(model, ids, labels) / accumulate
            loss.backward()
            total += loss.item()
            if micro % accumulate:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            lr_schedule.step()
            updates += 1
            if updates % 3 == 0:
                print(f"update {updates:2d}  loss {total / 3:.4f}")
                total = 0.0


if __name__ == "__main__":
    train()
