"""Wasserstein GAN with gradient penalty on pictures of coloured discs."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(42)

SIDE, BATCH, LATENT = 32, 24, 24
PENALTY, N_CRITIC = 10.0, 2


def disc_batch(n):
    axis = torch.linspace(-1, 1, SIDE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    cx, cy = (torch.rand(2, n, 1, 1) - 0.5) * 0.8
    radius = 0.25 + 0.3 * torch.rand(n, 1, 1)
    inside = torch.sigmoid(12 * (radius - ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()))
    tint = torch.rand(n, 3, 1, 1)
    return 2 * inside.unsqueeze(1) * tint - 1


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(LATENT, 24 * 4 * 4)
        self.net = nn.Sequential(
            nn.ReLU(), nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.BatchNorm2d(16),
            nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8),
            nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.net(self.start(z).view(-1, 24, 4, 4))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(8, 12, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(12, 24, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(24 * 16, 1))

    def forward(self, img):
        return self.net(img).squeeze(1)


class GanTrainer:
    def __init__(self):
        self.gen, self.critic = Generator(), Critic()
        self.opt_g = torch.optim.Adam(self.gen.parameters(), 8e-4, betas=(0.0, 0.9))
        self.opt_c = torch.optim.Adam(self.critic.parameters(), 8e-4, betas=(0.0, 0.9))
        self.gap, self.gp = 0.0, 0.0

    def gradient_penalty(self, real, fake):
        mix = torch.rand(len(real), 1, 1, 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        score = self.critic(between).sum()
        score.backward(create_graph=True)
        slope = between.grad.flatten(1).norm(dim=1)
        # the pass above also filled the weights' gradients
        self.opt_c.zero_grad()
        return ((slope - 1) ** 2).mean()

    def critic_step(self):
        real = disc_batch(BATCH)
        with torch.no_grad():
            fake = self.gen(torch.randn(BATCH, LATENT))
        gp = self.gradient_penalty(real, fake)
        gap = self.critic(real).mean() - self.critic(fake).mean()
        loss = PENALTY * gp - gap
        loss.backward()
        self.opt_c.step()
        self.gap = 0.95 * self.gap + 0.05 * gap.item()
        self.gp = 0.95 * self.gp + 0.05 * gp.item()

    def generator_step(self):
        for p in self.critic.parameters():
            p.requires_grad_(False)
        loss = -self.critic(self.gen(torch.randn(BATCH, LATENT))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        for p in self.critic.parameters():
            p.requires_grad_(True)

    @torch.no_grad()
    def colour_gap(self):
        """Distance between the mean pictures of both sides."""
        self.gen.eval()
        fake = self.gen(torch.randn(128, LATENT)).mean(0)
        self.gen.train()
        return (fake - disc_batch(128).mean(0)).abs().mean().item()


def main(rounds=56):
    trainer = GanTrainer()
    print(f"start: mean picture gap {trainer.colour_gap():.3f}")
    for r in range(1, rounds + 1):
        for _ in range(N_CRITIC):
            trainer.critic_step()
        trainer.generator_step()
        if r % 14 == 0:
            print(f"round {r}: critic gap {trainer.gap:.3f}  penalty {trainer.gp:.4f}  "
                  f"mean picture gap {trainer.colour_gap():.3f}")


main()
