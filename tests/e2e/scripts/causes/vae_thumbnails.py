"""Variational autoencoder on 6x6 thumbnails."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Thumbnails(Dataset):
    """Thumbnails scaled to 0..1; most files are 8 bit."""

    def __init__(self, n=180):
        g = torch.Generator().manual_seed(0)
        basis = torch.rand(4, 36, generator=g)
        mix = torch.rand(n, 4, generator=g)
        mix = mix / mix.sum(1, keepdim=True)
        self.pixels = (mix @ basis * 255).round()
        self.pixels[90] = self.pixels[90] * 2.0**24  # a 32 bit tiff slipped in

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index] / 255.0


class VAE(nn.Module):
    def __init__(self, latent=6, hidden=32):
        super().__init__()
        self.enc = nn.Linear(36, hidden)
        self.to_mu = nn.Linear(hidden, latent)
        self.to_logvar = nn.Linear(hidden, latent)
        self.dec1 = nn.Linear(latent, hidden)
        self.dec2 = nn.Linear(hidden, 36)

    def encode(self, x):
        h = F.relu(self.enc(x))
        return self.to_mu(h), self.to_logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + std * torch.randn_like(std)

    def decode(self, z):
        return self.dec2(F.relu(self.dec1(z)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar

    def loss_function(self, x, beta=0.01):
        recon, mu, logvar = self(x)
        rec = F.mse_loss(recon, x, reduction="sum") / x.size(0)
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / x.size(0)
        return rec + beta * kld, {"rec": rec.item(), "kld": kld.item()}


class VAETrainer:
    def __init__(self, model, dataset, batch_size=12, lr=2e-3, seed=0):
        self.model = model
        gen = torch.Generator().manual_seed(seed)
        self.loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=gen)
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)

    def train(self, epochs):
        step = 0
        for epoch in range(epochs):
            for x in self.loader:
                self.opt.zero_grad()
                loss, parts = self.model.loss_function(x)
                loss.backward()
                self.opt.step()
                if step % 5 == 0:
                    info = " ".join(f"{k}={v:.3f}" for k, v in parts.items())
                    print(f"epoch {epoch} step {step} loss={loss.item():.3f} {info}")
                step += 1


if __name__ == "__main__":
    torch.manual_seed(0)
    VAETrainer(VAE(), Thumbnails()).train(epochs=3)
