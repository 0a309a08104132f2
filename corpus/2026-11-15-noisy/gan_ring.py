"""A small GAN on a ring of eight gaussians, two optimizers, non-saturating loss."""

import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(7)

Z = 8
BATCH = 128
ITERS = 700


def sample_real(n):
    k = torch.randint(0, 8, (n,)).float() * (2 * math.pi / 8)
    centers = torch.stack([k.cos(), k.sin()], dim=1) * 1.5
    return centers + 0.08 * torch.randn(n, 2)


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LeakyReLU(0.2))


netG = nn.Sequential(block(Z, 96), block(96, 96), nn.Linear(96, 2))
netD = nn.Sequential(block(2, 96), block(96, 96), nn.Linear(96, 1))
optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))
optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.9))
bce = nn.BCEWithLogitsLoss()
real_label = torch.full((BATCH, 1), 0.9)
fake_label = torch.zeros(BATCH, 1)


def energy_distance(a, b):
    ab = torch.cdist(a, b).mean()
    return (2 * ab - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


for it in range(ITERS):
    # discriminator
    optD.zero_grad()
    fake = netG(torch.randn(BATCH, Z))
    lossD = bce(netD(sample_real(BATCH)), real_label) + bce(netD(fake.detach()), fake_label)
    lossD.backward()
    optD.step()

    # generator
    optG.zero_grad()
    lossG = bce(netD(fake), torch.ones(BATCH, 1))
    lossG.backward()
    optG.step()

    if it % 100 == 0:
        print(f"[{it}/{ITERS}] Loss_D {lossD.item():.3f} Loss_G {lossG.item():.3f}")

with torch.no_grad():
    print("final", energy_distance(netG(torch.randn(1000, Z)), sample_real(1000)))
