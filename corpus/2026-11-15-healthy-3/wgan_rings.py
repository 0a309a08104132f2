"""WGAN-GP on two concentric rings."""

import math

import torch
from torch import nn

CFG = dict(z=8, hidden=256, batch=256, n_critic=4, lam=1.0, iters=90, lr=3e-4)


def mlp(inp, out, hidden):
    return nn.Sequential(
        nn.Linear(inp, hidden),
        nn.SiLU(),
        nn.Linear(hidden, hidden),
        nn.SiLU(),
        nn.Linear(hidden, out),
    )


def sample_real(n):
    angle = torch.rand(n) * 2 * math.pi
    radius = torch.where(torch.rand(n) < 0.5, 1.0, 2.0) + 0.03 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def gradient_penalty(critic, real, fake):
    mix = torch.rand(real.size(0), 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(x).sum()
    (grad,) = torch.autograd.grad(score, x, create_graph=True)
    return ((grad.norm(2, dim=1) - 1) ** 2).mean()


def critic_step(critic, gen, opt, cfg):
    real = sample_real(cfg["batch"])
    with torch.no_grad():
        fake = gen(torch.randn(cfg["batch"], cfg["z"]))
    gap = critic(real).mean() - critic(fake).mean()
    gp = gradient_penalty(critic, real, fake)
    loss = -gap + cfg["lam"] * gp
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return gap.item(), gp.item()


def generator_step(critic, gen, opt, cfg):
    critic.requires_grad_(False)
    loss = -critic(gen(torch.randn(cfg["batch"], cfg["z"]))).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    critic.requires_grad_(True)
    return loss.item()


def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(11)
    gen = mlp(cfg["z"], 2, cfg["hidden"])
    critic = mlp(2, 1, cfg["hidden"])
    opt_g = torch.optim.Adam(gen.parameters(), lr=cfg["lr"], betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=cfg["lr"], betas=(0.5, 0.9))
    fixed_z = torch.randn(256, cfg["z"])
    curve, snapshots = [], []
    for it in range(cfg["iters"]):
        stats = [critic_step(critic, gen, opt_c, cfg) for _ in range(cfg["n_critic"])]
        g_loss = generator_step(critic, gen, opt_g, cfg)
        curve.append((stats[-1][0], stats[-1][1], g_loss))
        if (it + 1) % 15 == 0:
            with torch.no_grad():
                snapshots.append(gen(fixed_z).numpy())
            radius = float((snapshots[-1] ** 2).sum(1).mean() ** 0.5)
            print(f"iter {it + 1:3d} gap {curve[-1][0]:.3f} gp {curve[-1][1]:.3f} r {radius:.2f}")


if __name__ == "__main__":
    main(CFG)
