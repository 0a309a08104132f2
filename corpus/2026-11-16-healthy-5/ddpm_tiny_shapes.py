"""Denoising diffusion on 12x12 shapes: gradient accumulation, EMA weights, DDIM previews."""
import copy
import math
import os
import tempfile
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

hp = SimpleNamespace(timesteps=400, micro=3, accumulate=2, updates=155, lr=1.5e-3, ema=0.98, width=16, seed=31)


def sinusoid(t, dim):
    freq = torch.exp(-math.log(1e4) * torch.arange(dim // 2) / (dim // 2))
    arg = t.float()[:, None] * freq[None]
    return torch.cat([arg.sin(), arg.cos()], dim=-1)


class Res(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.n1, self.n2 = nn.GroupNorm(8, i), nn.GroupNorm(8, o)
        self.emb = nn.Linear(emb, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.emb(e)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w
        self.time = nn.Sequential(nn.Linear(w, 2 * w), nn.SiLU(), nn.Linear(2 * w, 2 * w))
        self.inp = nn.Conv2d(1, w, 3, padding=1)
        self.d1, self.d2, self.mid = Res(w, w, 2 * w), Res(w, 2 * w, 2 * w), Res(2 * w, 2 * w, 2 * w)
        self.u1 = Res(3 * w, w, 2 * w)
        self.out = nn.Conv2d(w, 1, 3, padding=1)

    def forward(self, x, t):
        e = self.time(sinusoid(t, self.w))
        h1 = self.d1(self.inp(x), e)
        h2 = self.mid(self.d2(F.avg_pool2d(h1, 2), e), e)
        return self.out(self.u1(torch.cat([F.interpolate(h2, scale_factor=2.0), h1], 1), e))


def draw_shapes(n):
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    cy, cx, r = (3 + 6 * torch.rand(n, 1, 1) for _ in range(3))
    r = 1.5 + r / 4
    disc = ((y - cy) ** 2 + (x - cx) ** 2).sqrt() < r
    box = torch.maximum((y - cy).abs(), (x - cx).abs()) < r
    return torch.where(torch.rand(n, 1, 1) < 0.5, disc, box).float().unsqueeze(1) * 2 - 1


class Diffusion:
    def __init__(self):
        betas = torch.linspace(1e-4, 0.03, hp.timesteps)
        self.alpha_bar = torch.cumprod(1 - betas, 0)

    def loss(self, net, x0):
        t = torch.randint(0, hp.timesteps, (len(x0),))
        noise = torch.randn_like(x0)
        ab = self.alpha_bar[t][:, None, None, None]
        return F.mse_loss(net(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t), noise)

    @torch.no_grad()
    def preview(self, net, n=2, steps=6):
        x = torch.randn(n, 1, 12, 12)
        ladder = torch.linspace(hp.timesteps - 1, 0, steps + 1).long()
        for now, nxt in zip(ladder[:-1], ladder[1:]):
            eps = net(x, now.repeat(n))
            x0 = ((x - (1 - self.alpha_bar[now]).sqrt() * eps) / self.alpha_bar[now].sqrt()).clamp(-1, 1)
            x = self.alpha_bar[nxt].sqrt() * x0 + (1 - self.alpha_bar[nxt]).sqrt() * eps
        return x


def train():
    net = UNet(hp.width)
    shadow = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters(), lr=hp.lr)
    diff, log = Diffusion(), []
    with tempfile.TemporaryDirectory() as folder:
        for update in range(1, hp.updates + 1):
            opt.zero_grad(set_to_none=True)
            for _ in range(hp.accumulate):
                loss = diff.loss(net, draw_shapes(hp.micro)) / hp.accumulate
                loss.backward()
                log.append(loss.item() * hp.accumulate)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            torch._foreach_lerp_(list(shadow.parameters()), list(net.parameters()), 1 - hp.ema)
            if update % 31 == 0:
                torch.save(shadow.state_dict(), os.path.join(folder, "ema.pt"))
                sample = diff.preview(shadow)
                recent = torch.tensor(log[-60:])
                print(f"update {update} mse {recent.mean():.3f} (min {recent.min():.3f} max {recent.max():.3f}) "
                      f"preview range [{sample.min():.2f}, {sample.max():.2f}]")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(hp.seed)
    train()
