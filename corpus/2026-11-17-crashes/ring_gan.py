"""GAN that learns points on a ring of eight gaussians."""
import argparse
import math

import torch
from torch import nn


def sample_ring(count, modes=8, radius=2.0, noise=0.05):
    angles = torch.randint(modes, (count,)) * (2 * math.pi / modes)
    centers = torch.stack([angles.cos(), angles.sin()], dim=1) * radius
    return centers + noise * torch.randn(count, 2)


def mlp(sizes, slope=0.2):
    layers = []
    for cin, cout in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(cin, cout), nn.LeakyReLU(slope)]
    return nn.Sequential(*layers[:-1])


class RingGan:
    def __init__(self, latent, width, lr):
        self.latent = latent
        self.generator = mlp([latent, width, width, 2])
        self.critic = mlp([2, width, width, 1])
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=lr, betas=(0.5, 0.9))
        self.bce = nn.BCEWithLogitsLoss()

    def train_step(self, real):
        count = len(real)
        ones, zeros = torch.ones(count, 1), torch.zeros(count, 1)
        fake = self.generator(torch.randn(count, self.latent))
        real_logits = self.critic(real)
        fake_logits = self.critic(fake)

        d_loss = self.bce(real_logits, ones) + self.bce(fake_logits, zeros)
        g_loss = self.bce(fake_logits, ones)

        self.opt_d.zero_grad()
        d_loss.backward(retain_graph=True)
        self.opt_d.step()

        self.opt_g.zero_grad()
        g_loss.backward()
        self.opt_g.step()
        return d_loss.item(), g_loss.item()

    @torch.no_grad()
    def coverage(self, count=1000):
        points = self.generator(torch.randn(count, self.latent))
        angle = torch.atan2(points[:, 1], points[:, 0])
        return torch.unique((angle / (2 * math.pi) * 8).round() % 8).numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()

    torch.manual_seed(42)
    gan = RingGan(args.latent, args.width, args.lr)
    for step in range(args.steps):
        d_loss, g_loss = gan.train_step(sample_ring(args.batch))
        if step % 100 == 0:
            print(f"step {step} d {d_loss:.3f} g {g_loss:.3f} modes {gan.coverage()}")


if __name__ == "__main__":
    main()
