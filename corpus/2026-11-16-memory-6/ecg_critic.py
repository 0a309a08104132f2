"""Wasserstein GAN for single-lead heartbeats, critic regularised with R1 every few steps."""
import math

import torch
from torch import nn

LATENT = 24
LENGTH = 256
BATCH = 16


def heartbeats(n):
    t = torch.linspace(0, 1, LENGTH).expand(n, LENGTH)
    shift = 0.04 * torch.randn(n, 1)
    out = torch.zeros(n, LENGTH)
    for centre, width, height in [(0.25, 0.03, 0.15), (0.42, 0.010, -0.15), (0.45, 0.012, 1.0),
                                  (0.48, 0.010, -0.25), (0.70, 0.05, 0.30)]:
        amp = height * (1 + 0.2 * torch.randn(n, 1))
        out = out + amp * torch.exp(-0.5 * ((t - centre - shift) / width) ** 2)
    drift = 0.05 * torch.sin(2 * math.pi * (t + torch.rand(n, 1)))
    return (out + drift + 0.01 * torch.randn(n, LENGTH)).unsqueeze(1)


def build_generator():
    return nn.Sequential(
        nn.Linear(LATENT, 64 * 16), nn.LeakyReLU(0.2), nn.Unflatten(1, (64, 16)),
        nn.ConvTranspose1d(64, 32, 8, stride=4, padding=2), nn.LeakyReLU(0.2),
        nn.ConvTranspose1d(32, 16, 8, stride=4, padding=2), nn.LeakyReLU(0.2),
        nn.Conv1d(16, 1, 7, padding=3),
    )


def build_critic():
    return nn.Sequential(
        nn.Conv1d(1, 24, 9, stride=2, padding=4), nn.Softplus(),
        nn.Conv1d(24, 32, 9, stride=4, padding=4), nn.Softplus(),
        nn.Conv1d(32, 48, 9, stride=4, padding=4), nn.Softplus(),
        nn.Flatten(), nn.Linear(48 * 8, 1),
    )


def r1_penalty(critic, real):
    real = real.detach().requires_grad_(True)
    score = critic(real).sum()
    grad, = torch.autograd.grad(score, real, create_graph=True)
    return grad.pow(2).sum(dim=(1, 2)).mean()


def critic_step(critic, generator, opt, real, apply_reg, stats):
    with torch.no_grad():
        fake = generator(torch.randn(len(real), LATENT))
    wasserstein = critic(real).mean() - critic(fake).mean()
    r1 = r1_penalty(critic, real)
    loss = -wasserstein
    if apply_reg:
        loss = loss + 5.0 * r1
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    stats["wasserstein"].append(wasserstein.item())
    stats["r1"].append(r1)


def generator_step(critic, generator, opt):
    fake = generator(torch.randn(BATCH, LATENT))
    loss = -critic(fake).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss


def train(rounds=100, critic_iters=2, reg_every=4):
    data = heartbeats(4096)
    generator, critic = build_generator(), build_critic()
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.5, 0.9))
    stats = {"wasserstein": [], "r1": []}
    count = 0
    for rnd in range(1, rounds + 1):
        for _ in range(critic_iters):
            real = data[torch.randint(0, len(data), (BATCH,))]
            critic_step(critic, generator, opt_c, real, count % reg_every == 0, stats)
            count += 1
        g_loss = generator_step(critic, generator, opt_g)
        if rnd % 20 == 0:
            w = sum(stats["wasserstein"][-50:]) / 50
            r1 = torch.stack(stats["r1"][-50:]).mean()
            print(f"round {rnd:4d}  W {w:+.3f}  R1 {r1.item():.3f}  G {g_loss.item():+.3f}")
    return generator


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = train()
    with torch.no_grad():
        beats = gen(torch.randn(64, LATENT))
    print("generated beats: mean peak", round(beats.amax(dim=2).mean().item(), 3))
