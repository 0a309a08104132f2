import copy
import os
import tempfile

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

Z, CODES, SIDE = 24, 4, 16
R1_EVERY, R1_GAMMA = 8, 1.0
out_dir = tempfile.mkdtemp(prefix="blobs_")


def real_batch(n):
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    quadrant = torch.randint(0, 4, (n,))
    cy = 4.0 + 8.0 * (quadrant // 2) + 0.6 * torch.randn(n)
    cx = 4.0 + 8.0 * (quadrant % 2) + 0.6 * torch.randn(n)
    dist = (yy - cy[:, None, None]) ** 2 + (xx - cx[:, None, None]) ** 2
    return (2 * torch.exp(-dist / 8.0) - 1).unsqueeze(1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(Z + CODES, 64 * 16)
        self.up = nn.Sequential(
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z, code):
        return self.up(self.fc(torch.cat([z, F.one_hot(code, CODES)], 1)).view(-1, 64, 4, 4))


class Critic(nn.Module):
    def __init__(self, n_out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * 16, n_out),
        )

    def forward(self, x):
        return self.net(x)


G, D, Q = Generator(), Critic(1), Critic(CODES)
G_ema = copy.deepcopy(G).eval().requires_grad_(False)
opt_g = torch.optim.Adam(G.parameters(), lr=5e-4, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=5e-4, betas=(0.5, 0.99))
opt_q = torch.optim.Adam(Q.parameters(), lr=5e-4)
fixed_z = torch.randn(32, Z)
fixed_code = torch.arange(32) % CODES
reference = real_batch(2000).mean(0)
log = {"d": [], "q": [], "gap": []}

for step in range(1, 241):
    real = real_batch(48)
    z, code = torch.randn(48, Z), torch.randint(0, CODES, (48,))

    # discriminator
    with torch.no_grad():
        fake = G(z, code)
    d_loss = adversarial = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
    if step % R1_EVERY == 0:
        probe = real.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(D(probe).sum(), probe, create_graph=True)
        d_loss = d_loss + R1_EVERY * R1_GAMMA / 2 * slope.square().flatten(1).sum(1).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()

    # generator and code head
    D.requires_grad_(False)
    fake = G(z, code)
    q_loss = F.cross_entropy(Q(fake), code)
    g_loss = F.softplus(-D(fake)).mean() + 0.5 * q_loss
    opt_g.zero_grad()
    opt_q.zero_grad()
    g_loss.backward()
    opt_g.step()
    opt_q.step()
    D.requires_grad_(True)

    with torch.no_grad():
        beta = min(0.98, step / (step + 10))
        for avg, live in zip(G_ema.parameters(), G.parameters()):
            avg.lerp_(live, 1 - beta)
        for avg, live in zip(G_ema.buffers(), G.buffers()):
            avg.copy_(live)

    if step % 40 == 0:
        with torch.inference_mode():
            grid = G_ema(fixed_z, fixed_code)
            gap = (G_ema(torch.randn(500, Z), torch.arange(500) % 4).mean(0) - reference).abs()
        np.save(os.path.join(out_dir, f"grid_{step:04d}.npy"), grid.numpy())
        log["d"].append(adversarial.item())
        log["q"].append(q_loss.item())
        log["gap"].append(gap.mean().item())
        print(step, " ".join(f"{name} {values[-1]:.3f}" for name, values in log.items()))
