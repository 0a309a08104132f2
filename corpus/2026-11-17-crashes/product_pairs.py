"""Metric learning for product descriptions (vectors); retrieval is measured on the catalogue."""
import os
import resource
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    products: int = 1500
    views: int = 2
    features: int = 40
    dim: int = 64
    batch_size: int = 50
    epochs: int = 3
    memory_mb: int = 1500


def cap_memory(megabytes):
    with open("/proc/self/statm") as handle:
        mapped = int(handle.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = mapped + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class ProductViews(Dataset):
    def __init__(self, cfg):
        self.base = torch.randn(cfg.products, cfg.features)

    def __len__(self):
        return len(self.base)

    def view(self, index):
        return self.base[index] + 0.5 * torch.randn(self.base.shape[1])

    def __getitem__(self, index):
        return self.view(index), self.view(index)


class Tower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(cfg.features, 128), nn.ReLU(), nn.Linear(128, cfg.dim)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


def info_nce(a, b, temperature=0.1):
    logits = a @ b.t() / temperature
    return F.cross_entropy(logits, torch.arange(len(a)))


def squared_distances(a, b):
    return (a.unsqueeze(1) - b.unsqueeze(0)).pow(2).sum(-1)


@torch.no_grad()
def recall_at_1(model, data, cfg):
    queries, gallery = [], []
    for _ in range(cfg.views):
        queries.append(torch.stack([data.view(i) for i in range(len(data))]))
        gallery.append(torch.stack([data.view(i) for i in range(len(data))]))
    queries, gallery = model(torch.cat(queries)), model(torch.cat(gallery))
    nearest = squared_distances(queries, gallery).argmin(1)
    owner = torch.arange(len(data)).repeat(cfg.views)
    return (owner[nearest] == owner).float().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(18)
    torch.set_num_threads(1)
    data = ProductViews(cfg)
    loader = DataLoader(data, batch_size=cfg.batch_size, shuffle=True)
    model = Tower(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    cap_memory(cfg.memory_mb)
    for epoch in range(cfg.epochs):
        for first, second in loader:
            loss = info_nce(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f} recall {recall_at_1(model, data, cfg):.3f}")


if __name__ == "__main__":
    main()
