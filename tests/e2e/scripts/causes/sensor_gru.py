"""Predict the next day's load from variable length sensor logs (GRUCell, step by step)."""

import argparse
import math
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

COLUMNS = 3


def read_logs(count, seed):
    """Text rows as they come from the logger: 'temp;load;wind'."""
    rng = random.Random(seed)
    logs = []
    for k in range(count):
        phase, rows = rng.uniform(0, 6.28), []
        for t in range(rng.randint(6, 14)):
            load = math.sin(phase + 0.4 * t)
            rows.append(f"{rng.gauss(0, 1):.3f};{load + rng.gauss(0, 0.05):.3f};{rng.random():.3f}")
        if k == 45:
            rows[4] = rows[4].rsplit(";", 1)[0] + ";nan"
        target = math.sin(phase + 0.4 * len(rows))
        logs.append((rows, target))
    return logs


class SensorLogs(Dataset):
    def __init__(self, count=120, seed=0):
        self.logs = read_logs(count, seed)

    def __len__(self):
        return len(self.logs)

    def __getitem__(self, index):
        rows, target = self.logs[index]
        values = [[float(v) for v in row.split(";")] for row in rows]
        return torch.tensor(values), torch.tensor(target)


def collate(batch):
    seqs = [seq for seq, _ in batch]
    lengths = torch.tensor([len(s) for s in seqs])
    targets = torch.stack([t for _, t in batch])
    return pad_sequence(seqs, batch_first=True), lengths, targets


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.cell = nn.GRUCell(COLUMNS, hidden)
        self.head = nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, x, lengths):
        h = x.new_zeros(x.size(0), self.hidden)
        for t in range(x.size(1)):
            new_h = self.cell(x[:, t], h)
            running = (t < lengths).unsqueeze(1)
            h = torch.where(running, new_h, h)
        return self.head(h).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(SensorLogs(), batch_size=10, shuffle=True, collate_fn=collate)
    model = Forecaster(args.hidden)
    opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    loss_fn = nn.MSELoss()

    n = 0
    for epoch in range(args.epochs):
        total = 0.0
        for x, lengths, y in loader:
            loss = loss_fn(model(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            total += loss.item()
            if n % 3 == 0:
                print(f"{n:4d} mse={loss.item():.4f}")
            n += 1
        print(f"epoch {epoch}: mean mse {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
