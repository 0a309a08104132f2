import math

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)
torch._dynamo.config.recompile_limit = 32


class TurbineVAE(nn.Module):
    """VAE over windows of vibration sensors with a warm-up of the KL weight."""

    def __init__(self, channels=4, length=96, latent=16, warmup_epochs=8):
        super().__init__()
        flat = channels * length
        self.warmup_epochs = warmup_epochs
        self.epoch = 0
        self.encoder = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flat, 512),
            nn.SiLU(),
            nn.Linear(512, 256),
            nn.SiLU(),
        )
        self.to_mu = nn.Linear(256, latent)
        self.to_logvar = nn.Linear(256, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 256),
            nn.SiLU(),
            nn.Linear(256, 512),
            nn.SiLU(),
            nn.Linear(512, flat),
            nn.Unflatten(1, (channels, length)),
        )

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.to_mu(h), self.to_logvar(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        recon = self.decoder(z)
        nll = F.mse_loss(recon, x, reduction="none").sum((1, 2)).mean()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        beta = min(1.0, self.epoch / self.warmup_epochs)
        return nll + beta * kl, nll, kl


def vibration_windows(n, channels=4, length=96):
    t = torch.linspace(0, 1, length)
    rpm = torch.empty(n, 1, 1).uniform_(3, 9)
    phase = torch.empty(n, channels, 1).uniform_(0, 2 * math.pi)
    gain = torch.linspace(0.5, 1.5, channels)[None, :, None]
    wave = gain * torch.sin(2 * math.pi * rpm * t + 0.2 * phase)
    return wave + 0.05 * torch.randn(n, channels, length)


def main():
    windows = vibration_windows(1024)
    model = TurbineVAE()
    step_fn = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(10):
        model.epoch = epoch
        for idx in torch.randperm(len(windows)).split(128):
            loss, nll, kl = step_fn(windows[idx])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch:2d} loss {loss.item():8.2f} nll {nll.item():8.2f} kl {kl.item():6.2f}")


if __name__ == "__main__":
    main()
