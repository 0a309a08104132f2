"""Electron / photon / pion classification from toy calorimeter showers."""
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

GRID = 16
N_EVENTS = 384
CLASSES = ("electron", "photon", "pion")


def simulate(path, n=N_EVENTS, seed=11):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:GRID, 0:GRID]
    cells = np.zeros((n, GRID, GRID), dtype=np.int16)
    label = rng.integers(0, len(CLASSES), size=n)
    energy = rng.uniform(20, 90, size=n).astype(np.float32)
    for i in range(n):
        cx, cy = rng.normal(GRID / 2, 1.2, size=2)
        width = (1.3, 1.7, 2.9)[label[i]]
        profile = np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (2 * width**2))
        if label[i] == 2:
            profile *= rng.gamma(1.5, 0.7, size=profile.shape)
        profile = profile / profile.sum() * energy[i] * 100
        cells[i] = rng.poisson(profile + 1.0)
    np.savez_compressed(path, cells=cells, label=label, energy=energy)


class ShowerDataset(Dataset):
    """Events of one simulation file."""

    def __init__(self, path):
        self.archive = np.load(path)
        self.size = len(self.archive["label"])
        self.labels = self.archive["label"]
        self.energies = self.archive["energy"]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        cells = self.archive["cells"][index]
        image = np.log1p(cells.astype(np.float32))
        if np.random.rand() < 0.5:
            image = image[:, ::-1].copy()
        energy = np.float32(self.energies[index] / 100.0)
        return torch.from_numpy(image)[None], torch.tensor([energy]), int(self.labels[index])


class ShowerNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(8 * width + 1, 48), nn.ReLU(), nn.Linear(48, len(CLASSES)))

    def forward(self, image, energy):
        z = self.trunk(image).flatten(1)
        return self.head(torch.cat([z, energy], dim=1))


class Trainer:
    def __init__(self, model, train_set, val_set, batch_size=24, lr=2e-3):
        self.model = model
        self.train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(val_set, batch_size=64)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-3)
        self.step = 0

    def train_step(self, batch):
        image, energy, label = batch
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(image, energy), label)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        right = total = 0
        for image, energy, label in self.val_loader:
            right += (self.model(image, energy).argmax(1) == label).sum().item()
            total += len(label)
        return right / total

    def fit(self, epochs):
        for epoch in range(epochs):
            running = torch.zeros(())
            for n, batch in enumerate(self.train_loader, 1):
                running += self.train_step(batch)
            if epoch % 4 == 3:
                print(f"epoch {epoch:2d} step {self.step:4d} loss {running.item() / n:.4f} val acc {self.validate():.3f}")


def main():
    torch.manual_seed(3)
    np.random.seed(3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "showers.npz")
        simulate(path)
        data = ShowerDataset(path)
        train_set, val_set = random_split(data, [336, 48], generator=torch.Generator().manual_seed(0))
        trainer = Trainer(ShowerNet(), train_set, val_set)
        trainer.fit(epochs=13)
        data.archive.close()


if __name__ == "__main__":
    main()
