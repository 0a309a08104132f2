"""VAE-GAN with clamped log-variance and logits losses, two optimizers, spectral features."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

LATENT = 4


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.mu, self.logvar = nn.Linear(32, LATENT), nn.Linear(32, LATENT)
        self.dec = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8.0, 8.0)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.dec(z), mu, logvar

    def compute_loss(self, x, critic):
        recon, mu, logvar = self(x)
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(dim=1).mean()
        fool = F.binary_cross_entropy_with_logits(critic(recon), torch.ones(len(x), 1))
        return F.mse_loss(recon, x) + 0.01 * kld + 0.05 * fool, recon.detach()


def minibatch_std(h):
    std = (h.var(dim=0) + 1e-8).sqrt().mean()
    return torch.cat([h, std.expand(len(h), 1)], dim=1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 24)
        self.fc2 = nn.Linear(25, 1)

    def forward(self, x):
        return self.fc2(minibatch_std(F.leaky_relu(self.fc1(x), 0.2)))


def psnr(recon, x):
    """Only for the log; infinite for a perfect reconstruction."""
    with torch.no_grad():
        mse = (recon - x).pow(2).mean(dim=1)
        return (10 * torch.log10(1 / mse)).clamp(max=60.0).mean().item()


def main():
    torch.manual_seed(21)
    signal = torch.sin(torch.rand(256, 1) * 6 + torch.linspace(0, 3, 16))
    signal[:3] = 0.0
    loader = DataLoader(TensorDataset(signal), batch_size=16, shuffle=True)
    vae, critic = VAE(), Critic()
    opt_v = torch.optim.Adam(vae.parameters(), lr=2e-3)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
    step = 0
    for epoch in range(3):
        for (x,) in loader:
            v_loss, recon = vae.compute_loss(x, critic)
            opt_v.zero_grad()
            v_loss.backward()
            opt_v.step()

            real, fake = critic(x), critic(recon)
            c_loss = F.softplus(-real).mean() + F.softplus(fake).mean()
            opt_c.zero_grad()
            c_loss.backward()
            opt_c.step()
            if step % 8 == 0:
                # identical inputs give an infinite psnr before the clamp
                print(
                    f"epoch {epoch} step {step} vae {v_loss.item():.4f} critic {c_loss.item():.4f}"
                    f" psnr {psnr(recon, x):.1f} self {psnr(x, x):.1f}"
                )
            step += 1
    print(f"final loss {v_loss.item():.4f}")


if __name__ == "__main__":
    main()
