"""Classifies synthetic fluorescence crops into cell types; watches layer activity while training."""
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def synth_cells(n, size=20, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size]
    imgs, labels = [], []
    for _ in range(n):
        c = int(rng.integers(classes))
        img = rng.normal(0, 0.15, (2, size, size))
        for _ in range(1 + c):
            cy, cx = rng.uniform(4, size - 4, 2)
            r = rng.uniform(2, 4)
            blob = np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * r * r))
            img[0] += blob
            img[1] += blob * (0.3 + 0.2 * c)
        imgs.append(img)
        labels.append(c)
    return torch.tensor(np.array(imgs), dtype=torch.float32), torch.tensor(labels)


class CellNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.block1 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.LeakyReLU(0.1))
        self.block2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1))
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        z = self.block2(self.block1(self.stem(x)))
        return self.head(z.mean((2, 3)))


@dataclass
class ActivityMonitor:
    """Spread of every watched layer's channels, to find channels that die."""

    names: tuple
    spread: dict = field(default_factory=dict)

    def attach(self, model):
        for name in self.names:
            self.spread[name] = []
            model.get_submodule(name).register_forward_hook(self._recorder(name))

    def _recorder(self, name):
        def record(module, inputs, output):
            if module.training:
                self.spread[name].append(output.std(dim=(0, 2, 3)))
        return record

    def report(self, last=50):
        parts = []
        for name, values in self.spread.items():
            recent = torch.stack(values[-last:]).mean(0)
            parts.append(f"{name}: {int((recent < 1e-3).sum())} dead")
        return ", ".join(parts)


class Trainer:
    def __init__(self, model, train, valid, lr=1e-3):
        self.model, self.train_dl, self.valid_dl = model, train, valid
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.loss_fn = nn.CrossEntropyLoss()
        self.monitor = ActivityMonitor(("stem", "block1", "block2"))
        self.monitor.attach(model)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            total = 0.0
            for x, y in self.train_dl:
                loss = self.loss_fn(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                total += loss.item()
            acc = self.validate()
            print(f"epoch {epoch}: loss {total / len(self.train_dl):.3f} acc {acc:.3f} | {self.monitor.report()}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = n = 0
        for x, y in self.valid_dl:
            hits += int((self.model(x).argmax(1) == y).sum())
            n += len(y)
        return hits / n


def run():
    torch.manual_seed(3)
    x, y = synth_cells(1280, seed=1)
    xv, yv = synth_cells(320, seed=2)
    train = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    valid = DataLoader(TensorDataset(xv, yv), batch_size=64)
    Trainer(CellNet(), train, valid).fit(epochs=5)


if __name__ == "__main__":
    run()
