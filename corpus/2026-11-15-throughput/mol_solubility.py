"""Predicts a solubility score of molecules from atoms and hop distances."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader

from mol_batching import FAR, collate_molecules

torch.set_num_threads(1)

CONFIG = {"molecules": 640, "batch_size": 24, "width": 48, "epochs": 7, "lr": 2e-3}


def make_molecule(rng):
    n = rng.randint(18, 26)
    atoms = [rng.choice([1, 1, 1, 2, 3, 4]) for _ in range(n)]
    bonds = [(rng.randrange(max(0, i - 4), i), i) for i in range(1, n)]
    bonds += [(i, i + 5) for i in range(n - 5) if rng.random() < 0.12]
    polar = sum(a in (2, 3) for a in atoms)
    target = 0.3 * polar - 0.05 * n + 0.4 * (len(bonds) - n + 1)
    return {"atoms": atoms, "bonds": bonds, "target": float(target)}


class HopAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.bias = nn.Embedding(FAR + 1, 1)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, hops, valid):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        score = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + self.bias(hops).squeeze(-1)
        score = score.masked_fill(valid.unsqueeze(1) == 0, -1e4)
        x = x + score.softmax(-1) @ v
        return x + self.mlp(x)


class Regressor(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(6, width)
        self.layers = nn.ModuleList(HopAttention(width) for _ in range(2))
        self.out = nn.Linear(width, 1)

    def forward(self, batch):
        x = self.embed(batch["atoms"])
        for layer in self.layers:
            x = layer(x, batch["hops"], batch["valid"])
        return (self.out(x).squeeze(-1) * batch["valid"]).sum(1)


def main(cfg):
    torch.manual_seed(0)
    rng = random.Random(0)
    molecules = [make_molecule(rng) for _ in range(cfg["molecules"])]
    loader = DataLoader(
        molecules, batch_size=cfg["batch_size"], shuffle=True, collate_fn=collate_molecules
    )
    model = Regressor(cfg["width"])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    for epoch in range(cfg["epochs"]):
        errors = []
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(batch), batch["target"])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            errors.append(loss.item())
        print(f"epoch {epoch}: {sum(errors) / len(errors):.4f}")


if __name__ == "__main__":
    main(CONFIG)
