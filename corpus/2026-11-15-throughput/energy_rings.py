"""Energy-based model of detector rings, trained with short-run Langevin chains."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

CFG = {
    "epochs": 7,
    "batch_size": 192,
    "lr": 1e-3,
    "chain": {"length": 10, "step": 0.02, "noise": 0.05},
    "lengthen_from_epoch": 3,
}


def ring_points(n):
    angle = torch.rand(n) * 2 * torch.pi
    radius = torch.where(torch.rand(n) < 0.5, 0.8, 1.6) + 0.05 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


class Energy(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1) + 0.1 * (x * x).sum(1)


def langevin(energy, start, chain):
    x = start.clone()
    for _ in range(chain["length"]):
        x.requires_grad_(True)
        gradient = torch.autograd.grad(energy(x).sum(), x)[0]
        x = x.detach() - chain["step"] * gradient + chain["noise"] * torch.randn_like(x)
    return x.detach()


def train(cfg):
    torch.manual_seed(6)
    data = ring_points(4800)
    loader = DataLoader(TensorDataset(data), batch_size=cfg["batch_size"], shuffle=True)
    energy = Energy()
    optimizer = torch.optim.Adam(energy.parameters(), lr=cfg["lr"])
    chain = dict(cfg["chain"])
    buffer = torch.rand(2048, 2) * 4 - 2
    for epoch in range(cfg["epochs"]):
        gaps = []
        for (real,) in loader:
            slots = torch.randint(0, len(buffer), (len(real),))
            fake = langevin(energy, buffer[slots], chain)
            buffer[slots] = fake
            up, down = energy(real), energy(fake)
            loss = up.mean() - down.mean() + 0.1 * (up.square().mean() + down.square().mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            gaps.append((up.mean() - down.mean()).item())
            if epoch >= cfg["lengthen_from_epoch"]:
                chain["length"] += 1
        print(f"epoch {epoch}: energy gap {sum(gaps) / len(gaps):.4f}")


if __name__ == "__main__":
    train(CFG)
