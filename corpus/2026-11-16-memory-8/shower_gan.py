"""WGAN-GP for calorimeter showers with a pool of earlier fakes, as in the SimGAN trick."""
import math
import random

import torch
import torch.nn as nn

CELLS = 12
LATENT = 16
BATCH = 32
STEPS = 120
CRITIC_STEPS = 2
POOL = 96


def showers(n, gen):
    """Radial energy deposits with random depth and width."""
    grid = torch.linspace(-1, 1, CELLS)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    c = torch.randn(n, 2, 1, 1, generator=gen) * 0.15
    width = 0.2 + 0.2 * torch.rand(n, 1, 1, generator=gen)
    energy = 1 + torch.rand(n, 1, 1, generator=gen)
    r2 = (yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2
    return (energy * torch.exp(-r2 / (2 * width ** 2))).flatten(1)


def mlp(cin, cout, width=96):
    return nn.Sequential(nn.Linear(cin, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
                         nn.Linear(width, cout))


class FakePool:
    """Mixes earlier fakes into the critic's batch. Never more than `size` of them."""

    def __init__(self, size):
        self.size, self.items = size, []

    def mix(self, fakes):
        out = []
        for f in fakes.detach():
            if len(self.items) < self.size:
                self.items.append(f.clone())
                out.append(f)
            elif random.random() < 0.3:
                i = random.randrange(self.size)
                out.append(self.items[i])
                self.items[i] = f.clone()
            else:
                out.append(f)
        return torch.stack(out)


def gradient_penalty(critic, real, fake):
    a = torch.rand(len(real), 1)
    mixed = (a * real + (1 - a) * fake).requires_grad_(True)
    score = critic(mixed).sum()
    (g,) = torch.autograd.grad(score, mixed, create_graph=True)
    return (g.norm(dim=1) - 1).pow(2).mean()


def main():
    random.seed(0)
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(77)
    G, D = nn.Sequential(mlp(LATENT, CELLS * CELLS), nn.Softplus()), mlp(CELLS * CELLS, 1)
    opt_g = torch.optim.Adam(G.parameters(), lr=3e-4, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(D.parameters(), lr=3e-4, betas=(0.0, 0.9))
    pool = FakePool(POOL)
    fixed = torch.randn(256, LATENT, generator=gen)
    log = {"critic": [], "gp": [], "gen": []}
    gallery = []
    for step in range(STEPS):
        for _ in range(CRITIC_STEPS):
            real = showers(BATCH, gen)
            fake = pool.mix(G(torch.randn(BATCH, LATENT)))
            gap = D(fake).mean() - D(real).mean()
            penalty = gradient_penalty(D, real, fake)
            opt_d.zero_grad()
            # two passes over the critic's graph: the gap first, then the penalty
            gap.backward(retain_graph=True)
            (10 * penalty).backward()
            opt_d.step()
            log["critic"].append(gap.item())
            log["gp"].append(penalty.item())

        loss_g = -D(G(torch.randn(BATCH, LATENT))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        log["gen"].append(loss_g.item())

        if (step + 1) % 30 == 0:
            with torch.no_grad():
                made = G(fixed)
            gallery.append(made[:8].clone())
            e_fake, e_real = made.sum(1).mean().item(), showers(256, gen).sum(1).mean().item()
            tail = {k: sum(v[-30:]) / len(v[-30:]) for k, v in log.items()}
            assert math.isfinite(tail["gp"])
            print(f"step {step + 1}: " + " ".join(f"{k} {v:.3f}" for k, v in tail.items()) +
                  f" | energy {e_fake:.1f} vs {e_real:.1f}")
    drift = (gallery[-1] - gallery[0]).abs().mean().item()
    print(f"pool {len(pool.items)}, gallery drift {drift:.3f}")


if __name__ == "__main__":
    main()
