"""Permuted-task digit classification with an importance-weighted penalty on the old weights."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(11)

SIDE = 16
CLASSES = 6
TASKS = 3


def make_task(task_id, n=2304):
    gen = torch.Generator().manual_seed(100 + task_id)
    prototypes = torch.randn(CLASSES, SIDE * SIDE, generator=gen)
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = prototypes[y] + 1.3 * torch.randn(n, SIDE * SIDE, generator=gen)
    return x, y


class PathImportance:
    def __init__(self, model, strength=0.5, xi=0.1):
        self.model = model
        self.strength = strength
        self.xi = xi
        self.stats = {}
        for name, p in model.named_parameters():
            self.stats[name] = {
                "path": torch.zeros_like(p),
                "omega": torch.zeros_like(p),
                "prev": p.detach().clone(),
                "anchor": p.detach().clone(),
            }

    def after_step(self):
        for name, p in self.model.named_parameters():
            s = self.stats[name]
            s["path"] += -p.grad * (p - s["prev"])
            s["prev"].copy_(p.detach())

    @torch.no_grad()
    def consolidate(self):
        for name, p in self.model.named_parameters():
            s = self.stats[name]
            moved = p - s["anchor"]
            s["omega"] += (s["path"] / (moved**2 + self.xi)).clamp(min=0)
            s["path"].zero_()
            s["anchor"].copy_(p)

    def penalty(self):
        total = 0.0
        for name, p in self.model.named_parameters():
            s = self.stats[name]
            total = total + (s["omega"] * (p - s["anchor"]) ** 2).sum()
        return self.strength * total


class Classifier(nn.Module):
    def __init__(self, hidden=448):
        super().__init__()
        self.inp = nn.Linear(SIDE * SIDE, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.out(F.relu(self.mid(F.relu(self.inp(x)))))


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    model = Classifier()
    reg = PathImportance(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    seen = []
    for task in range(TASKS):
        x, y = make_task(task)
        seen.append((x, y))
        for epoch in range(7):
            order = torch.randperm(len(x))
            for start in range(0, len(x), 192):
                idx = order[start : start + 192]
                loss = F.cross_entropy(model(x[idx]), y[idx]) + reg.penalty()
                opt.zero_grad()
                loss.backward()
                opt.step()
                reg.after_step()
            print(f"task {task} epoch {epoch} loss {loss.item():.4f}")
        reg.consolidate()
        print("accuracy so far:", [round(accuracy(model, a, b), 3) for a, b in seen])


if __name__ == "__main__":
    main()
