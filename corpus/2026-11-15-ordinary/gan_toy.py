"""Two-optimizer GAN on a ring of Gaussians; noisy but healthy."""

import math

import torch
import torch.nn as nn

torch.manual_seed(31)
torch.set_num_threads(1)


def ring(n):
    angle = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)


def mlp(i, o):
    return nn.Sequential(
        nn.Linear(i, 128),
        nn.LeakyReLU(0.2),
        nn.Linear(128, 128),
        nn.LeakyReLU(0.2),
        nn.Linear(128, o),
    )


netG, netD = mlp(8, 2), mlp(2, 1)
optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))
optD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.9))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

for it in range(80):
    for _ in range(2):
        netD.zero_grad()
        lossD = bce(netD(ring(64)), ones) + bce(netD(netG(torch.randn(64, 8)).detach()), zeros)
        lossD.backward()
        optD.step()
    netG.zero_grad()
    lossG = bce(netD(netG(torch.randn(64, 8))), ones)
    lossG.backward()
    optG.step()
    if it % 20 == 0:
        print(f"[{it}] D {lossD.item():.3f} G {lossG.item():.3f}")

print(f"final loss {lossG.item():.4f}")
