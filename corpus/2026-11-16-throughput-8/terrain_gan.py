"""GAN for small terrain height maps, with a feature statistics term for the generator."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE, LATENT, BATCH, STEPS = 16, 24, 16, 160


def terrain(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    out = torch.zeros(n, 1, SIZE, SIZE)
    for octave in (2, 4, 8):
        coarse = torch.randn(n, 1, octave, octave, generator=g)
        out += F.interpolate(coarse, size=SIZE, mode="bilinear", align_corners=False) / octave**0.5
    return torch.tanh(out)


class Generator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.fc = nn.Linear(LATENT, width * 16)
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(width, 1, 3, padding=1), nn.Tanh(),
        )

    def forward(self, z):
        return self.up(F.relu(self.fc(z)).view(len(z), -1, 4, 4))


class Critic(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
        )
        self.score = nn.Linear(2 * width * 16, 1)

    def forward(self, x):
        return self.score(self.features(x).flatten(1))


class FeatureProbe:
    """Collects channel statistics of the critic's last feature block."""

    def __init__(self, critic):
        self.critic = critic
        self.stats = None

    def _keep(self, module, inputs, output):
        f = output.flatten(2)
        self.stats = torch.cat([f.mean(dim=(0, 2)), f.std(dim=(0, 2))])

    def __call__(self, images):
        self.critic.features[-1].register_forward_hook(self._keep)
        scores = self.critic(images)
        return scores, self.stats


def critic_step(critic, opt, real, fake):
    loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


def generator_step(gen, critic, probe, opt, real, z, match):
    if match:
        with torch.no_grad():
            _, target = probe(real)
        scores, stats = probe(gen(z))
        loss = -scores.mean() + 5.0 * F.mse_loss(stats, target)
    else:
        loss = -critic(gen(z)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


def main():
    torch.manual_seed(4)
    maps = terrain(3000)
    gen, critic = Generator(), Critic()
    probe = FeatureProbe(critic)
    opt_g = torch.optim.Adam(gen.parameters(), lr=3e-4, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=3e-4, betas=(0.5, 0.9))
    for step in range(STEPS):
        real = maps[torch.randint(0, len(maps), (BATCH,))]
        with torch.no_grad():
            fake = gen(torch.randn(BATCH, LATENT))
        loss_c = critic_step(critic, opt_c, real, fake)
        loss_g = generator_step(gen, critic, probe, opt_g, real, torch.randn(BATCH, LATENT), step % 4 == 0)
        if step % 40 == 39:
            print(f"step {step + 1:4d}  critic {loss_c.item():.3f}  generator {loss_g.item():.3f}")
    with torch.no_grad():
        sample = gen(torch.randn(64, LATENT))
    print(f"roughness real {maps.diff(dim=3).abs().mean():.3f}  generated {sample.diff(dim=3).abs().mean():.3f}")


if __name__ == "__main__":
    main()
