"""Momentum contrast on synthetic vibration spectra."""
import copy
from collections import deque

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

N_MACHINES, LENGTH, BATCH, DIM = 600, 256, 32, 256
QUEUE_BATCHES = 130
STEPS = 260
TEMPERATURE = 0.1


def make_spectra(n, length):
    f = torch.linspace(0, 1, length)
    base = torch.zeros(n, length)
    for _ in range(6):
        c = torch.rand(n, 1)
        w = 0.004 + 0.02 * torch.rand(n, 1)
        a = torch.rand(n, 1)
        base += a * torch.exp(-((f - c) / w) ** 2)
    return base


def augment(x):
    gain = 0.7 + 0.6 * torch.rand(x.shape[0], 1)
    tilt = (torch.rand(x.shape[0], 1) - 0.5) * torch.linspace(-1, 1, x.shape[1])
    shift = int(torch.randint(-6, 7, (1,)))
    return torch.roll(x, shift, dims=1) * gain + 0.3 * tilt + 0.08 * torch.randn_like(x)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 9, stride=2, padding=4), nn.BatchNorm1d(16), nn.ReLU(),
            nn.Conv1d(16, 32, 7, stride=2, padding=3), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Conv1d(32, 64, 5, stride=2, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4))
        self.proj = nn.Sequential(nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, dim))

    def forward(self, x):
        return F.normalize(self.proj(self.conv(x.unsqueeze(1))), dim=1)


class MoCo:
    def __init__(self, encoder, momentum=0.99):
        self.q = encoder
        self.k = copy.deepcopy(encoder)
        for p in self.k.parameters():
            p.requires_grad_(False)
        self.m = momentum
        self.queue = deque(maxlen=QUEUE_BATCHES)

    @torch.no_grad()
    def update_key_encoder(self):
        for pk, pq in zip(self.k.parameters(), self.q.parameters()):
            pk.lerp_(pq, 1 - self.m)

    def loss(self, xq, xk):
        q = self.q(xq)
        with torch.no_grad():
            self.update_key_encoder()
            k = self.k(xk)
        pos = (q * k).sum(1, keepdim=True)
        logits = pos
        if self.queue:
            logits = torch.cat([pos, q @ torch.cat(list(self.queue)).t()], dim=1)
        self.queue.append(k)
        target = torch.zeros(len(q), dtype=torch.long)
        return F.cross_entropy(logits / TEMPERATURE, target), logits


spectra = make_spectra(N_MACHINES, LENGTH)
moco = MoCo(Encoder(DIM))
opt = torch.optim.SGD(moco.q.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)

for step in range(STEPS):
    idx = torch.randint(0, N_MACHINES, (BATCH,))
    x = spectra[idx]
    loss, logits = moco.loss(augment(x), augment(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if (step + 1) % 40 == 0:
        top1 = (logits.argmax(1) == 0).float().mean().item()
        print(f"step {step + 1}: loss {loss.item():.3f}  top1 {top1:.2f}  negatives {len(moco.queue) * BATCH}")

with torch.no_grad():
    moco.q.eval()
    a, b = moco.q(augment(spectra)), moco.q(augment(spectra))
    print("retrieval accuracy:", ((a @ b.t()).argmax(1) == torch.arange(N_MACHINES)).float().mean().item())
