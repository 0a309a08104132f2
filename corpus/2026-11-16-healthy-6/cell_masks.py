"""Binary segmentation of synthetic microscopy tiles, accumulated gradients and averaged weights."""
import os
import shutil
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    size: int = 32
    micro_batch: int = 2
    accumulate: int = 2
    updates: int = 160
    val_every: int = 32
    lr: float = 2e-3
    ema: float = 0.98


class Tiles:
    def __init__(self, n, size, seed):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
        self.masks = torch.zeros(n, 1, size, size)
        for i in range(n):
            for _ in range(int(torch.randint(2, 6, (1,), generator=g))):
                cy, cx = (torch.rand(2, generator=g) * size).tolist()
                r = 3 + 5 * torch.rand(1, generator=g).item()
                self.masks[i, 0][(yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = 1
        blur = F.avg_pool2d(self.masks, 5, stride=1, padding=2)
        self.images = 0.6 * blur + 0.3 * torch.randn(n, 1, size, size, generator=g)

    def batch(self, k):
        idx = torch.randint(0, len(self.images), (k,))
        x, y = self.images[idx], self.masks[idx]
        if torch.rand(()) < 0.5:
            x, y = x.flip(-1), y.flip(-1)
        return x, y


def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1, self.d2, self.mid = double_conv(1, c), double_conv(c, 2 * c), double_conv(2 * c, 4 * c)
        self.u2, self.u1 = double_conv(6 * c, 2 * c), double_conv(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.out(a)


def dice_bce(logits, y):
    p = torch.sigmoid(logits)
    dice = 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / ((p + y).sum((1, 2, 3)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logits, y)


class Trainer:
    def __init__(self, cfg, workdir):
        self.cfg, self.workdir = cfg, workdir
        self.train_set, self.val_set = Tiles(160, cfg.size, 1), Tiles(24, cfg.size, 2)
        self.model = SmallUNet()
        self.averaged = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(cfg.ema))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, cfg.lr * 2, total_steps=cfg.updates)
        self.best = 0.0

    def update(self):
        total = torch.zeros(())
        for _ in range(self.cfg.accumulate):
            x, y = self.train_set.batch(self.cfg.micro_batch)
            loss = dice_bce(self.model(x), y) / self.cfg.accumulate
            loss.backward()
            total += loss.detach()
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad(set_to_none=True)
        self.averaged.update_parameters(self.model)
        return total

    @torch.inference_mode()
    def validate(self):
        self.averaged.eval()
        p = (self.averaged(self.val_set.images) > 0).float()
        y = self.val_set.masks
        return (2 * (p * y).sum() / (p.sum() + y.sum())).item()

    def fit(self):
        for step in range(1, self.cfg.updates + 1):
            loss = self.update()
            if step % self.cfg.val_every == 0:
                score = self.validate()
                if score > self.best:
                    self.best = score
                    torch.save(self.averaged.state_dict(), os.path.join(self.workdir, "best.pt"))
                print(f"update {step:3d}  loss {loss.item():.3f}  val dice {score:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(4)
    folder = tempfile.mkdtemp()
    try:
        Trainer(Config(), folder).fit()
    finally:
        shutil.rmtree(folder)
