"""GAN whose critic uses minibatch standard deviation: a batch of identical images breaks D only.

Kind of report: "discriminator gradients become nan, generator is fine at first" with the
minibatch-stddev trick written as sqrt(var) without epsilon. The steps listed are those of the
discriminator's optimizer; the generator only suffers once the discriminator's weights are NaN.
"""
# expect: NUM002
# poisoned-steps: [14, 37]
# category: NUM002

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
torch.set_num_threads(1)
Z, PIXELS, BS, ITERS = 16, 144, 32, 60


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(Z, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, PIXELS)
        )

    def forward(self, z):
        return torch.tanh(self.net(z))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(PIXELS, 128), nn.LeakyReLU(0.2))
        self.score = nn.Sequential(nn.Linear(129, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, x):
        h = self.features(x)
        spread = torch.sqrt(h.var(dim=0)).mean()
        h = torch.cat([h, spread.expand(h.size(0), 1)], dim=1)
        return self.score(h)


def real_images(it):
    centre = torch.randint(3, 9, (BS, 1, 2)).float()
    grid = torch.stack(
        torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"), dim=-1
    ).view(1, PIXELS, 2)
    images = torch.exp(-((grid - centre) ** 2).sum(-1) / 6) * 2 - 1
    if it in (14, 37):
        images = images[:1].repeat(BS, 1)  # the sampler got stuck on one still image
    return images


G, D = Generator(), Discriminator()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))

for it in range(ITERS):
    # discriminator
    real = real_images(it)
    fake = G(torch.randn(BS, Z)).detach()
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()

    # generator
    g_loss = F.softplus(-D(G(torch.randn(BS, Z)))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()

    if it % 10 == 0:
        print(f"it {it} d_loss {d_loss.item():.4f} g_loss {g_loss.item():.4f}")

print(f"final loss {d_loss.item() + g_loss.item():.4f}")
