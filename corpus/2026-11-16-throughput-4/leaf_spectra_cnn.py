import os
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(11)


@dataclass
class Config:
    n_samples: int = 1008
    n_bands: int = 256
    n_species: int = 6
    batch_size: int = 12
    epochs: int = 1
    lr: float = 1e-3
    workers: int = 2


def build_archive(cfg: Config, folder: str) -> str:
    rng = np.random.default_rng(4)
    species = rng.integers(0, cfg.n_species, cfg.n_samples)
    grid = np.linspace(0.0, 1.0, cfg.n_bands)
    centers = np.linspace(0.15, 0.85, cfg.n_species)
    bumps = np.exp(-(((grid[None] - centers[species][:, None]) / 0.08) ** 2))
    base = 0.4 + 0.2 * np.sin(6.0 * grid)[None]
    reflectance = base + 0.5 * bumps + 0.3 * rng.standard_normal((cfg.n_samples, cfg.n_bands))
    path = os.path.join(folder, "leaf_spectra.npz")
    np.savez_compressed(
        path,
        reflectance=np.round(reflectance, 3).astype(np.float32),
        species=species.astype(np.int64),
    )
    return path


class LeafSpectra(Dataset):
    def __init__(self, path: str):
        self.path = path
        self.archive = None
        with np.load(path) as z:
            self.species = torch.from_numpy(z["species"])

    def __len__(self) -> int:
        return len(self.species)

    def __getitem__(self, idx):
        if self.archive is None:
            self.archive = np.load(self.path)
        curve = self.archive["reflectance"][idx]
        curve = (curve - curve.mean()) / (curve.std() + 1e-6)
        return torch.from_numpy(curve).unsqueeze(0), self.species[idx]


def make_model(cfg: Config) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 24, 9, stride=2, padding=4),
        nn.ReLU(),
        nn.Conv1d(24, 48, 9, stride=2, padding=4),
        nn.ReLU(),
        nn.Conv1d(48, 48, 9, stride=2, padding=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(8),
        nn.Flatten(),
        nn.Linear(48 * 8, cfg.n_species),
    )


def train(cfg: Config) -> None:
    archive = build_archive(cfg, tempfile.mkdtemp())
    loader = DataLoader(
        LeafSpectra(archive),
        batch_size=cfg.batch_size,
        shuffle=True,
        num_workers=cfg.workers,
        drop_last=True,
    )
    model = make_model(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    criterion = nn.CrossEntropyLoss()
    running = 0.0
    for epoch in range(cfg.epochs):
        for step, (curves, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(curves), labels)
            loss.backward()
            optimizer.step()
            running = 0.9 * running + 0.1 * loss.item() if step else loss.item()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step:4d} loss {running:.4f}")


if __name__ == "__main__":
    train(Config())
