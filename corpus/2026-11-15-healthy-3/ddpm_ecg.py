import copy
import os
import tempfile
from collections import deque

import torch
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, ch=32, steps=50):
        super().__init__()
        self.time = nn.Embedding(steps, ch)
        self.inp = nn.Conv1d(1, ch, 5, padding=2)
        self.mid = nn.ModuleList([nn.Conv1d(ch, ch, 5, padding=2) for _ in range(3)])
        self.out = nn.Conv1d(ch, 1, 5, padding=2)
        self.act = nn.SiLU()

    def forward(self, x, t):
        h = self.inp(x)
        emb = self.time(t)[:, :, None]
        for conv in self.mid:
            h = h + conv(self.act(h + emb))
        return self.out(self.act(h))


class DiffusionTrainer:
    def __init__(self, signals, steps=50, batch=48, lr=2e-3):
        self.signals, self.steps, self.batch = signals, steps, batch
        betas = torch.linspace(1e-3, 0.15, steps)
        self.betas = betas
        self.abar = torch.cumprod(1 - betas, 0)
        self.model = Denoiser(steps=steps)
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.recent = deque(maxlen=20)
        self.epoch_loss = []
        self.samples = None
        self.dir = tempfile.mkdtemp()

    def update_ema(self, decay=0.97):
        with torch.no_grad():
            for avg, p in zip(self.ema.parameters(), self.model.parameters()):
                avg.lerp_(p, 1 - decay)

    def train_step(self, x0):
        t = torch.randint(0, self.steps, (len(x0),))
        noise = torch.randn_like(x0)
        a = self.abar[t].view(-1, 1, 1)
        pred = self.model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t)
        loss = (pred - noise).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.update_ema()
        self.recent.append(loss.item())
        return self.recent[-1]

    @torch.no_grad()
    def sample(self, n):
        x = torch.randn(n, 1, self.signals.size(-1))
        for i in reversed(range(self.steps)):
            t = torch.full((n,), i)
            eps = self.ema(x, t)
            x = (x - self.betas[i] / (1 - self.abar[i]).sqrt() * eps) / (1 - self.betas[i]).sqrt()
            if i:
                x = x + self.betas[i].sqrt() * torch.randn_like(x)
        return x

    def fit(self, epochs):
        for epoch in range(epochs):
            parts = torch.randperm(len(self.signals)).split(self.batch)
            values = [self.train_step(self.signals[idx]) for idx in parts]
            self.epoch_loss.append(sum(values) / len(values))
            self.samples = self.sample(4)
            torch.save(
                {"ema": self.ema.state_dict(), "opt": self.opt.state_dict(), "epoch": epoch},
                os.path.join(self.dir, "last.pt"),
            )
            tail = sum(self.recent) / len(self.recent)
            print(f"{epoch}: {self.epoch_loss[-1]:.4f} ({tail:.4f}) std {self.samples.std():.2f}")


def beats(n, length=64):
    t = torch.linspace(0, 1, length)
    center = 0.3 + 0.4 * torch.rand(n, 1)
    width = 0.02 + 0.03 * torch.rand(n, 1)
    peak = torch.exp(-((t - center) ** 2) / (2 * width**2))
    wave = 0.3 * torch.sin(6.28 * (t + torch.rand(n, 1)))
    return (2 * peak + wave).unsqueeze(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(8)
    DiffusionTrainer(beats(960)).fit(7)
