# %% RealNVP on two moons, with an animation of how the samples move into place
import io

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)

STEPS = 220
BATCH = 256
LAYERS = 4


def two_moons(n):
    t = rng.uniform(0, np.pi, n)
    side = rng.integers(0, 2, n)
    x = np.where(side == 0, np.cos(t), 1 - np.cos(t))
    y = np.where(side == 0, np.sin(t), 0.5 - np.sin(t))
    pts = np.stack([x - 0.5, y - 0.25], axis=1) * 1.6
    return torch.tensor(pts + 0.08 * rng.normal(size=(n, 2)), dtype=torch.float32)


# %% model
class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))

    def _st(self, a):
        s, t = self.net(a).chunk(2, dim=1)
        return 1.5 * torch.tanh(s), t

    def to_base(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        s, t = self._st(a)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], dim=1), s.sum(1)

    def to_data(self, z):
        a, b = z.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        s, t = self._st(a)
        b = (b - t) * (-s).exp()
        return torch.cat([b, a] if self.flip else [a, b], dim=1)


flow = nn.ModuleList(Coupling(flip=bool(i % 2)) for i in range(LAYERS))
base = torch.distributions.Normal(0.0, 1.0)


def log_prob(x):
    total = 0.0
    for layer in flow:
        x, logdet = layer.to_base(x)
        total = total + logdet
    return base.log_prob(x).sum(1) + total


@torch.no_grad()
def push_forward(z):
    for layer in reversed(flow):
        z = layer.to_data(z)
    return z


# %% animation canvas: a small square, fixed limits, no decoration
fig, ax = plt.subplots(figsize=(1.6, 1.6), dpi=50)
fixed_noise = torch.randn(300, 2)
frames = []


def add_frame():
    pts = push_forward(fixed_noise).numpy()
    ax.plot(pts[:, 0], pts[:, 1], ".", markersize=1.5, color="tab:blue")
    ax.set_xlim(-2.5, 2.5)
    ax.set_ylim(-2.5, 2.5)
    ax.set_axis_off()
    fig.canvas.draw()
    frames.append(np.asarray(fig.canvas.buffer_rgba())[..., :3].copy())


# %% training
opt = torch.optim.Adam(flow.parameters(), lr=3e-3)
for step in range(STEPS):
    loss = -log_prob(two_moons(BATCH)).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
    opt.step()
    add_frame()
    if step % 40 == 0:
        print(f"{step:4d}  nll {loss.item():.3f}")

# %% write the animation
gif = io.BytesIO()
images = [Image.fromarray(f) for f in frames]
images[0].save(gif, format="GIF", save_all=True, append_images=images[1:], duration=40, loop=0)
print(f"final nll {loss.item():.3f}, animation of {len(images)} frames, {gif.tell() / 1e6:.2f} MB")
