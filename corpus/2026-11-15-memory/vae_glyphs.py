"""VAE on 28x28 glyph images made of random strokes."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from vae_meters import board


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=250)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--latent", type=int, default=12)
    p.add_argument("--beta", type=float, default=0.5)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def glyphs(n, gen):
    grid = torch.arange(28.0)
    cx, cy = torch.rand(2, n, 3, 1, generator=gen) * 20 + 4
    wx, wy = torch.rand(2, n, 3, 1, generator=gen) * 4 + 1.5
    horiz = torch.exp(-(((grid - cx) / wx) ** 2))
    vert = torch.exp(-(((grid - cy) / wy) ** 2))
    return torch.einsum("nkx,nky->nxy", horiz, vert).clamp(0, 1).flatten(1)


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(784, 400), nn.ELU(), nn.Linear(400, 128), nn.ELU())
        self.mu = nn.Linear(128, latent)
        self.logvar = nn.Linear(128, latent)
        self.dec = nn.Sequential(
            nn.Linear(latent, 128), nn.ELU(), nn.Linear(128, 400), nn.ELU(), nn.Linear(400, 784)
        )

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo_terms(logits, x, mu, logvar):
    recon = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return recon, kl


def main():
    args = get_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    data = glyphs(6000, gen)
    model = VAE(args.latent)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step in range(1, args.steps + 1):
        x = data[torch.randint(0, len(data), (args.batch_size,), generator=gen)]
        logits, mu, logvar = model(x)
        recon, kl = elbo_terms(logits, x, mu, logvar)
        loss = recon + args.beta * kl
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        opt.step()

        pixel_err = F.l1_loss(torch.sigmoid(logits), x)
        board.update(len(x), elbo=loss.item(), kl=kl.item(), l1=pixel_err)
        if step % 50 == 0:
            print(f"step {step}: {board.line()}")


if __name__ == "__main__":
    main()
