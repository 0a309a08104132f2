"""GAN on flattened 8x8 frames; the critic also sees how varied the batch is."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

LATENT = 12
PIXELS = 64


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(LATENT, 48)
        self.fc2 = nn.Linear(48, PIXELS)

    def forward(self, z):
        return torch.sigmoid(self.fc2(F.leaky_relu(self.fc1(z), 0.1)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(PIXELS, 48)
        self.fc2 = nn.Linear(48 + 1, 1)

    def batch_variety(self, h):
        # one number per batch, appended to every sample (as in progressive GANs)
        spread = h.var(dim=0).sqrt()
        return spread.mean().expand(h.size(0), 1)

    def forward(self, x):
        h = F.leaky_relu(self.fc1(x), 0.1)
        h = torch.cat([h, self.batch_variety(h)], dim=1)
        return self.fc2(h).squeeze(1)


def load_frames():
    """Moving gaussian blobs. The recording is kept in order, lens cap included."""
    g = torch.Generator().manual_seed(21)
    yy, xx = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    centre = 1.5 + 4.0 * torch.rand(320, 2, 1, 1, generator=g)
    blobs = torch.exp(-((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2) / 3.0)
    blobs[144:176] = 0.0
    return blobs.flatten(1)


def d_step(G, D, opt, real):
    fake = G(torch.randn(real.size(0), LATENT)).detach()
    real_logit, fake_logit = D(real), D(fake)
    loss = F.softplus(-real_logit).mean() + F.softplus(fake_logit).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def g_step(G, D, opt, n):
    loss = F.softplus(-D(G(torch.randn(n, LATENT)))).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(load_frames()), batch_size=16, shuffle=False)
    G, D = Generator(), Discriminator()
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.99))
    opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.99))

    it = 0
    for epoch in range(3):
        for (real,) in loader:
            d_loss = d_step(G, D, opt_d, real)
            g_loss = g_step(G, D, opt_g, real.size(0))
            if it % 4 == 0:
                print(f"[{epoch}] iter {it:3d} d_loss={d_loss:.4f} g_loss={g_loss:.4f}")
            it += 1
