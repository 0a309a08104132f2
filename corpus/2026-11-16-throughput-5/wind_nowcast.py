"""Short-term wind nowcasting: predict the next (u, v) field from the last four.

A synthetic reanalysis is written once per run into a scratch folder, in the
same layout as the archive we get from the met office (one .npz per region).
"""
import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def build_archive(folder: Path, hours: int, size: int, rng: np.random.Generator) -> Path:
    yy, xx = np.mgrid[0:size, 0:size] / size * 2 * np.pi
    u = np.empty((hours, size, size), dtype=np.float32)
    v = np.empty_like(u)
    phase = rng.uniform(0, 2 * np.pi, size=4)
    for t in range(hours):
        a = 0.11 * t
        u[t] = np.sin(xx + a + phase[0]) * np.cos(yy - 0.5 * a + phase[1])
        v[t] = -np.cos(xx + 0.7 * a + phase[2]) * np.sin(yy + a + phase[3])
    u += 0.05 * rng.standard_normal(u.shape, dtype=np.float32)
    v += 0.05 * rng.standard_normal(v.shape, dtype=np.float32)
    path = folder / "region_north_sea.npz"
    np.savez(path, u=u, v=v, hours=np.arange(hours))
    return path


class WindFields(Dataset):
    def __init__(self, path: Path, context: int = 4):
        self.fields = np.load(path)
        self.context = context
        self.n = len(self.fields["hours"]) - context

    def __len__(self):
        return self.n

    def __getitem__(self, t):
        stop = t + self.context + 1
        window = np.stack([self.fields["u"][t:stop], self.fields["v"][t:stop]], axis=1)
        past = window[:-1].reshape(-1, *window.shape[2:])
        return torch.from_numpy(past), torch.from_numpy(window[-1])


class NowcastNet(nn.Module):
    def __init__(self, context: int, width: int):
        super().__init__()
        self.stem = nn.Conv2d(2 * context, width, 3, padding=1, padding_mode="circular")
        self.mix = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="circular"),
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.mix(h)
        return x[:, -2:] + self.head(F.silu(h))


def train(args, path):
    loader = DataLoader(
        WindFields(path, args.context),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(args.seed),
    )
    net = NowcastNet(args.context, args.width)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        total = 0.0
        for past, target in loader:
            loss = F.smooth_l1_loss(net(past), target)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        print(f"epoch {epoch}: huber {total / len(loader):.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--hours", type=int, default=424)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--context", type=int, default=4)
    p.add_argument("--width", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as tmp:
        archive = build_archive(Path(tmp), args.hours, args.size, np.random.default_rng(args.seed))
        train(args, archive)
