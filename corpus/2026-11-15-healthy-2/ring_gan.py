import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class GANTrainer:
    def __init__(self, latent=16, hidden=256, batch=512, seed=2):
        torch.manual_seed(seed)
        self.latent, self.batch = latent, batch
        self.G = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2),
        )
        self.D = nn.Sequential(
            nn.Linear(2, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, 1),
        )
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.curves = {"d": [], "g": []}

    def real(self):
        k = torch.randint(0, 8, (self.batch,)) * (2 * math.pi / 8)
        centres = torch.stack([k.cos(), k.sin()], dim=1) * 2
        return centres + 0.08 * torch.randn(self.batch, 2)

    def fake(self):
        return self.G(torch.randn(self.batch, self.latent))

    def update_d(self):
        with torch.no_grad():
            fake = self.fake()
        loss = F.softplus(-self.D(self.real())).mean() + F.softplus(self.D(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def update_g(self):
        self.D.requires_grad_(False)
        loss = F.softplus(-self.D(self.fake())).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.D.requires_grad_(True)
        return loss.item()

    def train(self, rounds):
        for r in range(rounds):
            self.curves["d"].append(self.update_d())
            self.curves["g"].append(self.update_g())
            if (r + 1) % 100 == 0:
                radius = self.sample_radius()
                print(
                    f"round {r + 1} d {self.curves['d'][-1]:.3f} g {self.curves['g'][-1]:.3f} radius {radius:.3f}"
                )

    @torch.no_grad()
    def sample_radius(self):
        return self.fake().norm(dim=1).mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    GANTrainer().train(rounds=300)
