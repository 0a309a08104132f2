"""A small DDPM on 12x12 glyphs, with a look at the samples while it trains."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(99)

T = 60
SIDE = 12
betas = torch.linspace(1e-4, 0.08, T)
alphas = 1 - betas
alpha_bar = torch.cumprod(alphas, 0)


def glyphs(n):
    img = -torch.ones(n, 1, SIDE, SIDE)
    kind = torch.randint(0, 3, (n,)).tolist()
    shift = torch.randint(2, 6, (n, 2)).tolist()
    for i, (k, (a, b)) in enumerate(zip(kind, shift)):
        if k == 0:
            img[i, 0, a:a + 5, b] = 1
            img[i, 0, a + 4, b:b + 4] = 1
        elif k == 1:
            img[i, 0, a, b:b + 5] = 1
            img[i, 0, a:a + 5, b + 2] = 1
        else:
            img[i, 0, a:a + 5, b:b + 5] = 1
            img[i, 0, a + 1:a + 4, b + 1:b + 4] = -1
    return img


class Denoiser(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.time = nn.Sequential(nn.Embedding(T, ch), nn.Linear(ch, ch), nn.SiLU())
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.down = nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(2 * ch, 2 * ch, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * ch, ch, 4, stride=2, padding=1)
        self.out = nn.Conv2d(2 * ch, 1, 3, padding=1)

    def forward(self, x, t):
        a = F.silu(self.inp(x) + self.time(t)[:, :, None, None])
        b = F.silu(self.down(a))
        b = F.silu(self.mid(b) + b)
        return self.out(torch.cat([a, F.silu(self.up(b))], 1))


@torch.no_grad()
def sample(model, n):
    model.eval()
    x = torch.randn(n, 1, SIDE, SIDE)
    for t in reversed(range(T)):
        eps = model(x, torch.full((n,), t))
        x = (x - betas[t] / (1 - alpha_bar[t]).sqrt() * eps) / alphas[t].sqrt()
        if t > 0:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    model.train()
    return x.clamp(-1, 1)


def ink(images):
    return (images > 0).float().mean().item()


model = Denoiser()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sample_every = 20
reference = ink(glyphs(256))

for step in range(1, 261):
    x0 = glyphs(16)
    t = torch.randint(0, T, (16,))
    noise = torch.randn_like(x0)
    ab = alpha_bar[t][:, None, None, None]
    pred = model(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t)
    loss = F.mse_loss(pred, noise)
    opt.zero_grad()
    loss.backward()
    opt.step()

    if step % sample_every == 0:
        images = sample(model, 16)
        print(f"step {step:3d}  loss {loss.item():.3f}  ink {ink(images):.3f} (data {reference:.3f})")
