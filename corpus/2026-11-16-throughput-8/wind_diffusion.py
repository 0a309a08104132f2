"""Denoising diffusion of daily wind profiles (24 hourly values, conditioned on season)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

HOURS, SEASONS, TIMESTEPS = 24, 4, 100
BATCH, STEPS = 64, 440


def wind_days(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    season = torch.randint(0, SEASONS, (n,), generator=g)
    hour = torch.arange(HOURS) / HOURS * 2 * math.pi
    peak = 0.8 + 0.5 * season[:, None] + 0.2 * torch.randn(n, 1, generator=g)
    base = torch.sin(hour - peak) * (0.5 + 0.2 * season[:, None])
    return base + 0.1 * torch.randn(n, HOURS, generator=g).cumsum(1) / 3, season


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.season = nn.Embedding(SEASONS, 16)
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.body = nn.Sequential(
            nn.Linear(HOURS + 48, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, HOURS)
        )
        self.register_buffer("freq", torch.exp(torch.linspace(0, -5, 8)))

    def forward(self, x, t, season):
        angle = t[:, None].float() * self.freq
        temb = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        return self.body(torch.cat([x, temb, self.season(season)], dim=1))


class Diffusion:
    def __init__(self):
        self.beta = torch.linspace(1e-4, 0.08, TIMESTEPS)
        self.alpha = 1 - self.beta
        self.bar = self.alpha.cumprod(0)

    def loss(self, model, x0, season):
        t = torch.randint(0, TIMESTEPS, (len(x0),))
        eps = torch.randn_like(x0)
        scale = self.bar[t][:, None]
        return F.mse_loss(model(scale.sqrt() * x0 + (1 - scale).sqrt() * eps, t, season), eps)

    @torch.no_grad()
    def sample(self, model, season):
        x = torch.randn(len(season), HOURS)
        for i in range(TIMESTEPS - 1, -1, -1):
            t = torch.full((len(season),), i)
            eps = model(x, t, season)
            x = (x - self.beta[i] / (1 - self.bar[i]).sqrt() * eps) / self.alpha[i].sqrt()
            if i:
                x = x + self.beta[i].sqrt() * torch.randn_like(x)
        return x


class Average:
    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.model = Denoiser()
        self.model.load_state_dict(model.state_dict())

    @torch.no_grad()
    def update(self, model):
        for a, p in zip(self.model.parameters(), model.parameters()):
            a.lerp_(p, 1 - self.decay)


def preview(diffusion, model, reference):
    """Mean absolute gap between generated and observed seasonal profiles."""
    x, season = reference
    made = diffusion.sample(model, season)
    gaps = [(made[season == s].mean(0) - x[season == s].mean(0)).abs().mean() for s in range(SEASONS)]
    return torch.stack(gaps).mean()


def main():
    torch.manual_seed(12)
    days, season = wind_days(6000)
    reference = wind_days(128, seed=1)
    model, diffusion = Denoiser(), Diffusion()
    ema = Average(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    best = float("inf")
    for step in range(1, STEPS + 1):
        pick = torch.randint(0, len(days), (BATCH,))
        loss = diffusion.loss(model, days[pick], season[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model)
        if step % 20 == 0:
            best = min(best, preview(diffusion, ema.model, reference).item())
        if step % 110 == 0:
            print(f"{step:4d}  loss {loss.item():.4f}  best profile gap {best:.4f}")


if __name__ == "__main__":
    main()
