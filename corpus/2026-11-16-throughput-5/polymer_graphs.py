"""Distance-gated graph network with a learned weight per shortest-path length, on
random polymer-like graphs.

Target: (normalised) mean pairwise distance weighted by the node charges.
"""
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    n_graphs: int = 360
    n_min: int = 18
    n_max: int = 28
    max_dist: int = 12
    dim: int = 32
    layers: int = 2
    batch: int = 8
    epochs: int = 4
    lr: float = 2e-3
    seed: int = 3


def random_polymer(rng, cfg):
    n = int(rng.integers(cfg.n_min, cfg.n_max + 1))
    g = nx.path_graph(n)
    for _ in range(n // 6):  # a few rings
        a, b = rng.integers(0, n, size=2)
        if a != b:
            g.add_edge(int(a), int(b))
    charges = rng.choice([-1, 0, 1], size=n, p=[0.25, 0.5, 0.25])
    spread = np.array([d for _, d in g.degree()], dtype=np.float32)
    y = float((charges * spread).mean() + 0.02 * n - 0.5)
    return g, charges, y


class PolymerSet(Dataset):
    def __init__(self, cfg: Config):
        rng = np.random.default_rng(cfg.seed)
        self.items = [random_polymer(rng, cfg) for _ in range(cfg.n_graphs)]
        self.max_dist = cfg.max_dist

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        g, charges, y = self.items[i]
        dist = nx.floyd_warshall(g)
        hops = torch.tensor([[dist[a][b] for b in g] for a in g]).clamp(max=self.max_dist).long()
        degree = torch.tensor([d for _, d in g.degree()])
        return torch.from_numpy(charges + 2), degree.clamp(max=7), hops, y


def pad_graphs(samples):
    n = max(s[0].numel() for s in samples)
    bsz = len(samples)
    atoms = torch.zeros(bsz, n, dtype=torch.long)
    degree = torch.zeros(bsz, n, dtype=torch.long)
    hops = torch.zeros(bsz, n, n, dtype=torch.long)
    for k, (a, d, h, _) in enumerate(samples):
        m = a.numel()
        atoms[k, :m], degree[k, :m], hops[k, :m, :m] = a, d, h
    y = torch.tensor([s[3] for s in samples])
    return atoms, degree, hops, y


class DistanceMix(nn.Module):
    """Every node reads from all others, weighted by how many bonds lie in between."""

    def __init__(self, dim, max_dist):
        super().__init__()
        self.weight = nn.Embedding(max_dist + 1, 1)
        self.norm, self.value = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, hops, real):
        score = self.weight(hops).squeeze(-1).masked_fill(~real[:, None, :], -1e9)
        x = x + torch.bmm(score.softmax(-1), self.value(self.norm(x)))
        return x + self.mlp(x)


class PolymerNet(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.atom = nn.Embedding(4, cfg.dim, padding_idx=0)
        self.degree = nn.Embedding(8, cfg.dim)
        self.blocks = nn.ModuleList(DistanceMix(cfg.dim, cfg.max_dist) for _ in range(cfg.layers))
        self.out = nn.Sequential(nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, 1))

    def forward(self, atoms, degree, hops):
        real = atoms > 0
        x = self.atom(atoms) + self.degree(degree)
        for block in self.blocks:
            x = block(x, hops, real)
        w = real.unsqueeze(-1).float()
        return self.out((x * w).sum(1) / w.sum(1)).squeeze(-1)


def main(cfg: Config):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    loader = DataLoader(PolymerSet(cfg), cfg.batch, shuffle=True, collate_fn=pad_graphs)
    model = PolymerNet(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        running, seen = 0.0, 0
        for atoms, degree, hops, y in loader:
            loss = F.mse_loss(model(atoms, degree, hops), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item() * len(y)
            seen += len(y)
        print(f"epoch {epoch}  mse {running / seen:.4f}")


if __name__ == "__main__":
    main(Config())
