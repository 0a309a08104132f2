import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

MU = 63.0


class Compand(torch.autograd.Function):
    """mu-law style companding with a hand-written derivative."""

    @staticmethod
    def forward(ctx, x, mu):
        out = torch.sign(x) * torch.log1p(mu * x.abs()) / math.log1p(mu)
        ctx.mu, ctx.x = mu, x
        return out

    @staticmethod
    def backward(ctx, grad_out):
        slope = ctx.mu / (math.log1p(ctx.mu) * (1.0 + ctx.mu * ctx.x.abs()))
        return grad_out * slope, None


class EcgWindows(Dataset):
    def __init__(self, n=960, length=512, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 4, length)
        rate = 0.8 + 0.6 * torch.rand(n, 1, generator=g)
        shift = torch.rand(n, 1, generator=g)
        phase = torch.remainder(t * rate + shift, 1.0)
        beat = torch.exp(-((phase - 0.4) ** 2) / 0.0015)
        beat -= 0.25 * torch.exp(-((phase - 0.46) ** 2) / 0.0008)
        beat += 0.2 * torch.exp(-((phase - 0.7) ** 2) / 0.006)
        wander = 0.3 * torch.sin(2 * math.pi * 0.2 * t + 6 * shift)
        self.clean = beat.unsqueeze(1)
        noise = 0.15 * torch.randn(n, length, generator=g)
        self.noisy = (beat + wander + noise).unsqueeze(1)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        return self.noisy[i], self.clean[i]


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.enc = nn.Conv1d(1, width, 9, padding=4)
        self.mid = nn.Conv1d(width, width, 9, padding=4)
        self.dec = nn.Conv1d(width, 1, 9, padding=4)

    def forward(self, x):
        h = torch.tanh(self.enc(x))
        h = Compand.apply(self.mid(h), MU)
        return self.dec(h)


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def fit(epochs=5):
    torch.manual_seed(2)
    loader = DataLoader(EcgWindows(), batch_size=32, shuffle=True, drop_last=True)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 6e-3, total_steps=epochs * len(loader))
    run_avg, best = AverageMeter(), float("inf")
    for epoch in range(epochs):
        for noisy, clean in loader:
            opt.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(noisy), clean, beta=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            run_avg.update(loss, len(noisy))
            best = min(best, loss.item())
        print(f"epoch {epoch}: run average {run_avg.avg:.5f}, best batch {best:.5f}")


if __name__ == "__main__":
    fit()
