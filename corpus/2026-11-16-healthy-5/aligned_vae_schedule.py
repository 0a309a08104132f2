"""Aligned VAEs for generalised zero-shot learning: image features and class attributes share a latent space."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


@dataclass
class Ramp:
    start: int
    end: int
    rate: float

    def __call__(self, epoch):
        return max(0, min(epoch, self.end) - self.start) * self.rate


@dataclass
class Settings:
    classes: int = 40
    unseen: int = 8
    feat_dim: int = 256
    attr_dim: int = 85
    latent: int = 48
    epochs: int = 36
    batch: int = 128
    beta: Ramp = field(default_factory=lambda: Ramp(0, 30, 0.02))
    cross: Ramp = field(default_factory=lambda: Ramp(8, 25, 0.15))
    align: Ramp = field(default_factory=lambda: Ramp(3, 10, 0.5))


class Gauss(nn.Module):
    def __init__(self, i, h, z):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.mu, self.logvar = nn.Linear(h, z), nn.Linear(h, z)

    def forward(self, x):
        h = self.trunk(x)
        return self.mu(h), self.logvar(h).clamp(-8, 8)


class AlignedVAE(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.enc_x, self.enc_a = Gauss(s.feat_dim, 240, s.latent), Gauss(s.attr_dim, 256, s.latent)
        self.dec_x = nn.Sequential(nn.Linear(s.latent, 240), nn.ReLU(), nn.Linear(240, s.feat_dim))
        self.dec_a = nn.Sequential(nn.Linear(s.latent, 256), nn.ReLU(), nn.Linear(256, s.attr_dim))

    def losses(self, x, a):
        (mx, lx), (ma, la) = self.enc_x(x), self.enc_a(a)
        zx = mx + torch.randn_like(mx) * (0.5 * lx).exp()
        za = ma + torch.randn_like(ma) * (0.5 * la).exp()

        def l1(p, q):
            return (p - q).abs().sum(-1).mean()

        rec = l1(self.dec_x(zx), x) + l1(self.dec_a(za), a)
        cross = l1(self.dec_x(za), x) + l1(self.dec_a(zx), a)
        kl = sum(-0.5 * (1 + lv - m.pow(2) - lv.exp()).sum(-1).mean() for m, lv in ((mx, lx), (ma, la)))
        w2 = ((mx - ma).pow(2).sum(-1) + ((0.5 * lx).exp() - (0.5 * la).exp()).pow(2).sum(-1))
        return rec, kl, cross, (w2 + 1e-8).sqrt().mean()


def synthesise(s, seed=4):
    g = torch.Generator().manual_seed(seed)
    attributes = torch.rand(s.classes, s.attr_dim, generator=g)
    lift = torch.randn(s.attr_dim, s.feat_dim, generator=g) / s.attr_dim ** 0.5
    labels = torch.arange(s.classes).repeat_interleave(30)
    feats = F.relu(4 * (attributes[labels] - 0.5) @ lift + 0.3 * torch.randn(len(labels), s.feat_dim, generator=g))
    return attributes, feats, labels


class Experiment:
    def __init__(self, s):
        self.s = s
        self.attributes, self.feats, self.labels = synthesise(s)
        self.seen = self.labels < s.classes - s.unseen
        self.model = AlignedVAE(s)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3, amsgrad=True)

    def train_epoch(self, epoch):
        s, log = self.s, torch.zeros(5)
        rows = self.seen.nonzero().squeeze(1)
        order = rows[torch.randperm(len(rows))].split(s.batch)
        for idx in order:
            rec, kl, cross, align = self.model.losses(self.feats[idx], self.attributes[self.labels[idx]])
            total = rec + s.beta(epoch) * kl + s.cross(epoch) * cross + s.align(epoch) * align
            self.opt.zero_grad()
            total.backward()
            self.opt.step()
            log += torch.stack([total, rec, kl, cross, align]).detach()
        return (log / len(order)).tolist()

    @torch.no_grad()
    def zero_shot_accuracy(self):
        proto, _ = self.model.enc_a(self.attributes[-self.s.unseen:])
        z, _ = self.model.enc_x(self.feats[~self.seen])
        guess = torch.cdist(z, proto).argmin(1) + self.s.classes - self.s.unseen
        return (guess == self.labels[~self.seen]).float().mean().item()

    def fit(self):
        for epoch in range(self.s.epochs):
            total, rec, kl, cross, align = self.train_epoch(epoch)
            if epoch % 3 == 0 or epoch == self.s.epochs - 1:
                print(f"epoch {epoch:2d} total {total:8.2f} rec {rec:7.2f} kl {kl:7.2f} cross {cross:7.2f} "
                      f"align {align:5.2f} zsl acc {self.zero_shot_accuracy():.3f}")


if __name__ == "__main__":
    torch.manual_seed(4)
    Experiment(Settings()).fit()
