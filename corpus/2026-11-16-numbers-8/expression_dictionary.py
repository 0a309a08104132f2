"""Sparse dictionary of gene programmes: an overcomplete autoencoder with dead latent recycling."""
import torch
import torch.nn as nn
import torch.nn.functional as F

GENES = 96
PROGRAMMES = 160
LATENTS = 320
BATCH = 256
STEPS = 600
LOG_EVERY = 100
RECYCLE_EVERY = 150


class Cells:
    """Each cell mixes a handful of gene programmes."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.basis = F.normalize(torch.randn(PROGRAMMES, GENES, generator=self.gen), dim=1)
        self.freq = 0.004 + 0.05 * torch.rand(PROGRAMMES, generator=self.gen)

    def draw(self, n):
        on = (torch.rand(n, PROGRAMMES, generator=self.gen) < self.freq).float()
        level = 1.0 + torch.rand(n, PROGRAMMES, generator=self.gen)
        x = (on * level) @ self.basis
        return x + 0.02 * torch.randn(n, GENES, generator=self.gen)


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        atoms = F.normalize(torch.randn(LATENTS, GENES), dim=1)
        self.encoder = nn.Parameter(atoms.t().clone())
        self.enc_bias = nn.Parameter(torch.full((LATENTS,), -1.0))
        self.decoder = nn.Parameter(atoms.clone())
        self.centre = nn.Parameter(torch.zeros(GENES))

    def forward(self, x):
        code = F.relu((x - self.centre) @ self.encoder + self.enc_bias)
        return code @ self.decoder + self.centre, code

    @torch.no_grad()
    def unit_atoms(self):
        self.decoder.div_(self.decoder.norm(dim=1, keepdim=True).clamp_min(1e-8))


class FiringMonitor:
    def __init__(self):
        self.count = torch.zeros(LATENTS)
        self.seen = 0

    def update(self, code):
        self.count += (code > 0).float().sum(dim=0)
        self.seen += code.shape[0]

    def reset(self):
        self.count.zero_()
        self.seen = 0

    @property
    def dead(self):
        return self.count == 0


@torch.no_grad()
def recycle(model, dead, x):
    """Point dead latents at badly explained cells, with a small encoder weight."""
    if not dead.any():
        return 0
    error = (model(x)[0] - x).pow(2).sum(dim=1)
    pick = torch.multinomial(error, int(dead.sum()), replacement=True)
    direction = F.normalize(x[pick] - model.centre, dim=1)
    size = model.encoder[:, ~dead].norm(dim=0).mean()
    model.decoder[dead] = direction
    model.encoder[:, dead] = (0.2 * size * direction).t()
    model.enc_bias[dead] = 0.0
    return int(dead.sum())


def main():
    torch.manual_seed(12)
    cells = Cells(seed=40)
    model = Dictionary()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    monitor = FiringMonitor()

    for step in range(1, STEPS + 1):
        x = cells.draw(BATCH)
        recon, code = model(x)
        mse = (recon - x).pow(2).sum(dim=1).mean()
        sparsity = code.sum(dim=1).mean()
        loss = mse + 0.25 * sparsity
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.unit_atoms()
        monitor.update(code.detach())

        if step % LOG_EVERY == 0:
            print(f"{step:4d}  mse {mse.item():.4f}  active {(code > 0).float().sum(1).mean().item():.1f}"
                  f"  dead {int(monitor.dead.sum())}")
            monitor.reset()
        if step % RECYCLE_EVERY == 0:
            n = recycle(model, monitor.dead, x)
            print(f"{step:4d}  recycled {n} latents")

    with torch.no_grad():
        overlap = (cells.basis @ model.decoder.t()).max(dim=1).values.mean().item()
    print(f"mean recovery of the programmes {overlap:.3f}")


if __name__ == "__main__":
    main()
