"""VAE with sum-reduced losses of 1e8 to 1e9 over a batch of large images; big numbers, healthy."""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, pixels=2048, hidden=96, latent=8):
        super().__init__()
        self.fc1 = nn.Linear(pixels, hidden)
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.fc2 = nn.Linear(latent, hidden)
        self.fc3 = nn.Linear(hidden, pixels)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc3(F.relu(self.fc2(z)))), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    mse = 255.0**2 * F.mse_loss(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + mse + kld


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    basis = torch.rand(6, 2048)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(50):
        mix = torch.softmax(3 * torch.randn(64, 6), dim=1)
        x = (mix @ basis).clamp(0, 1)
        recon, mu, logvar = model(x)
        loss = loss_function(recon, x, mu, logvar)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.1f}")
    print(f"final loss {loss.item():.1f}")


main()
