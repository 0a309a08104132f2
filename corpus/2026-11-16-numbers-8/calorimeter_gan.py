"""GAN for longitudinal shower profiles in a sampling calorimeter.

Condition: log energy of the incoming particle.  The critic looks at the whole batch through a
batch spread feature, against mode collapse.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS = 48
LATENT = 16
BATCH = 64
ROUNDS = 400


def shower_batch(n, gen):
    """Gamma shaped longitudinal profiles with fluctuating depth and energy."""
    log_e = 1.0 + 3.0 * torch.rand(n, 1, generator=gen)
    depth = torch.arange(LAYERS).float() + 0.5
    peak = 6.0 + 3.5 * log_e + 2.0 * torch.randn(n, 1, generator=gen)
    peak = peak.clamp(2.0, 40.0)
    b = 0.45 + 0.05 * torch.randn(n, 1, generator=gen)
    a = 1.0 + b * peak
    profile = (a - 1) * torch.log(depth) - b * depth
    profile = torch.exp(profile - profile.max(dim=1, keepdim=True).values)
    noise = 0.03 * torch.randn(n, LAYERS, generator=gen)
    return torch.relu(profile + noise), (log_e - 2.5) / 1.5



def powered_layers(run):
    """Readout map of a run: now and then the high voltage of a layer has tripped."""
    on = torch.ones(LAYERS)
    if run % 5 == 3:
        on[(7 * run) % LAYERS] = 0.0
    return on


class Generator(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LATENT + 1, width), nn.LeakyReLU(0.2),
            nn.Linear(width, width), nn.LeakyReLU(0.2),
            nn.Linear(width, LAYERS), nn.Softplus(),
        )

    def forward(self, z, cond):
        return self.net(torch.cat([z, cond], dim=1))


class BatchSpread(nn.Module):
    """Appends the average per-layer standard deviation over the batch."""

    def forward(self, x):
        spread = x.var(dim=0, unbiased=False).sqrt()
        return torch.cat([x, spread.mean().expand(x.shape[0], 1)], dim=1)


class Critic(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.spread = BatchSpread()
        self.inp = nn.Linear(LAYERS + 2, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x, cond):
        h = F.leaky_relu(self.inp(torch.cat([self.spread(x), cond], dim=1)), 0.2)
        h = F.leaky_relu(self.mid(h), 0.2)
        return self.out(h).squeeze(1)


def main():
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(2)
    g, d = Generator(), Critic()
    g_opt = torch.optim.Adam(g.parameters(), lr=4e-4, betas=(0.5, 0.99))
    d_opt = torch.optim.Adam(d.parameters(), lr=8e-4, betas=(0.5, 0.99))
    g_sum = d_sum = 0.0
    for it in range(ROUNDS):
        on = powered_layers(run=it // 50)
        real, cond = shower_batch(BATCH, gen)
        real = real * on

        # critic
        fake = g(torch.randn(BATCH, LATENT, generator=gen), cond).detach() * on
        d_loss = F.softplus(-d(real, cond)).mean() + F.softplus(d(fake, cond)).mean()
        d_opt.zero_grad()
        d_loss.backward()
        d_opt.step()

        # generator
        fake = g(torch.randn(BATCH, LATENT, generator=gen), cond) * on
        g_loss = F.softplus(-d(fake, cond)).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()

        d_sum += d_loss.item()
        g_sum += g_loss.item()
        if (it + 1) % 40 == 0:
            print(f"round {it + 1:4d}  critic {d_sum / 40:.4f}  generator {g_sum / 40:.4f}")
            d_sum = g_sum = 0.0

    with torch.no_grad():
        real, cond = shower_batch(2000, gen)
        fake = g(torch.randn(2000, LATENT, generator=gen), cond)
        gap = (real.mean(0) - fake.mean(0)).abs().mean().item()
    print(f"mean profile gap {gap:.4f}")


if __name__ == "__main__":
    main()
