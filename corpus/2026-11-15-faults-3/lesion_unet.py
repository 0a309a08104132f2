import math

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.enc1 = block(1, c)
        self.enc2 = block(c, c * 2)
        self.mid = block(c * 2, c * 2)
        self.dec = block(c * 3, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        m = self.mid(b)
        up = F.interpolate(m, scale_factor=2, mode="nearest")
        return self.out(self.dec(torch.cat([a, up], dim=1)))


def synth_scans(n, size=80, seed=4):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx = torch.randint(20, size - 20, (n, 1, 1), generator=g)
    cy = torch.randint(20, size - 20, (n, 1, 1), generator=g)
    r = torch.randint(6, 18, (n, 1, 1), generator=g)
    mask = ((xx - cx) ** 2 + (yy - cy) ** 2 < r**2).float().unsqueeze(1)
    scans = mask * 0.8 + 0.5 * torch.randn(n, 1, size, size, generator=g)
    return scans, mask


def soft_dice(probs, masks, eps=1.0):
    inter = (probs * masks).sum(dim=(1, 2, 3))
    denom = (probs.pow(2) + masks.pow(2)).sum(dim=(1, 2, 3))
    return ((2 * inter + eps) / (denom + eps)).mean()


def train(steps=110, batch=8):
    torch.manual_seed(0)
    scans, masks = synth_scans(96)
    net = SmallUNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / steps))
    )
    running_dice = 0.0
    for step in range(1, steps + 1):
        idx = torch.randperm(len(scans))[:batch]
        x, y = scans[idx], masks[idx]
        logits = net(x)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()

        running_dice += soft_dice(logits.sigmoid(), y)
        if step % 25 == 0:
            print(f"step {step} bce {loss.item():.4f} mean dice {running_dice / step:.3f}")
    return net


if __name__ == "__main__":
    train()
