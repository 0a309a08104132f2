"""Learned sparse coding (unrolled ISTA) of natural-looking 12x12 patches."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
torch.set_num_threads(1)

PATCH = 144
ATOMS = 384
BATCH = 192
STEPS = 300
UNROLL = 4


class Shrink(torch.autograd.Function):
    """Soft threshold with a learnable per-atom threshold."""

    @staticmethod
    def forward(ctx, v, theta):
        out = torch.sign(v) * torch.clamp(v.abs() - theta, min=0.0)
        ctx.out = out
        return out

    @staticmethod
    def backward(ctx, grad_out):
        active = (ctx.out != 0).to(grad_out.dtype)
        grad_v = grad_out * active
        grad_theta = -(grad_v * torch.sign(ctx.out)).sum(0)
        return grad_v, grad_theta


class UnrolledIsta(nn.Module):
    def __init__(self, n_in, n_atoms, depth):
        super().__init__()
        self.depth = depth
        self.encode = nn.Linear(n_in, n_atoms, bias=False)
        self.lateral = nn.Linear(n_atoms, n_atoms, bias=False)
        self.dictionary = nn.Linear(n_atoms, n_in, bias=False)
        self.theta = nn.Parameter(torch.full((n_atoms,), 0.05))
        nn.init.orthogonal_(self.encode.weight)
        nn.init.zeros_(self.lateral.weight)

    def forward(self, x):
        drive = self.encode(x)
        code = Shrink.apply(drive, self.theta)
        for _ in range(self.depth - 1):
            code = Shrink.apply(drive + self.lateral(code), self.theta)
        return code, self.dictionary(code)


def make_patches(n):
    side = int(math.sqrt(PATCH))
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    ang = torch.rand(n, 1, 1) * math.pi
    freq = 2 + 5 * torch.rand(n, 1, 1)
    phase = torch.rand(n, 1, 1) * 2 * math.pi
    width = 0.3 + 0.7 * torch.rand(n, 1, 1)
    cx, cy = torch.rand(n, 1, 1) - 0.5, torch.rand(n, 1, 1) - 0.5
    u = torch.cos(ang) * xx + torch.sin(ang) * yy
    env = torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / width ** 2)
    p = env * torch.cos(freq * u + phase)
    p = p.reshape(n, PATCH) + 0.02 * torch.randn(n, PATCH)
    return p - p.mean(1, keepdim=True)


patches = make_patches(20000)
model = UnrolledIsta(PATCH, ATOMS, UNROLL)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(1, STEPS + 1):
    batch = patches[torch.randint(0, len(patches), (BATCH,))]
    code, recon = model(batch)
    fit = F.mse_loss(recon, batch)
    sparsity = code.abs().mean()
    loss = fit + 0.02 * sparsity

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.dictionary.weight /= model.dictionary.weight.norm(dim=0, keepdim=True).clamp(min=1.0)
        model.theta.clamp_(min=1e-3)

    if step % 60 == 0:
        used = (code != 0).float().mean().item()
        print(f"step {step:4d}  fit {fit.item():.5f}  active {100 * used:.1f}%")

with torch.no_grad():
    code, recon = model(patches[:1024])
    print("final reconstruction error", round(F.mse_loss(recon, patches[:1024]).item(), 5))
