import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)

LATENT, BATCH, STEPS = 32, 10, 160
D_REG_EVERY, G_REG_EVERY = 8, 4
R1_WEIGHT, PATH_WEIGHT, PATH_DECAY = 5.0, 0.5, 0.02


def glyph_batch(n, size=16):
    """Random crosses, boxes and bars on a dark background."""
    img = torch.full((n, 1, size, size), -0.9)
    pos = torch.randint(3, size - 5, (n, 2)).tolist()
    kind = torch.randint(0, 3, (n,)).tolist()
    for i, ((r, c), k) in enumerate(zip(pos, kind)):
        if k == 0:
            img[i, 0, r, c - 3:c + 4] = 0.9
            img[i, 0, r - 3:r + 4, c] = 0.9
        elif k == 1:
            img[i, 0, r - 2:r + 3, c - 2:c + 3] = 0.9
            img[i, 0, r - 1:r + 2, c - 1:c + 2] = -0.9
        else:
            img[i, 0, r:r + 2, 2:-2] = 0.9
    return img + 0.05 * torch.randn_like(img)


class Generator(nn.Module):
    def __init__(self, ch=20):
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(LATENT, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.const = nn.Parameter(torch.randn(1, ch, 4, 4))
        self.styles = nn.ModuleList(nn.Linear(64, ch) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(ch, ch, 3, padding=1) for _ in range(3))
        self.to_img = nn.Conv2d(ch, 1, 1)

    def forward(self, z):
        w = self.mapping(z)
        x = self.const.expand(len(z), -1, -1, -1)
        for i, (style, conv) in enumerate(zip(self.styles, self.convs)):
            if i:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = F.leaky_relu(conv(x * (1 + style(w))[:, :, None, None]), 0.2)
        return torch.tanh(self.to_img(x)), w


class Discriminator(nn.Module):
    def __init__(self, ch=20):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, ch, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, ch, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(2 * ch * 16, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def r1_penalty(disc, real):
    real = real.requires_grad_(True)
    grad, = torch.autograd.grad(disc(real).sum(), real, create_graph=True)
    return grad.pow(2).sum((1, 2, 3)).mean()


def path_length(img, w):
    noise = torch.randn_like(img) / img.shape[-1]
    grad, = torch.autograd.grad((img * noise).sum(), w, create_graph=True)
    return grad.pow(2).sum(1).sqrt()


G, D = Generator(), Discriminator()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.0, 0.99))
mean_path = torch.zeros(())
log = {"d": [], "g": []}

for step in range(STEPS):
    real = glyph_batch(BATCH)
    with torch.no_grad():
        fake, _ = G(torch.randn(BATCH, LATENT))
    d_loss = F.softplus(D(fake)).mean() + F.softplus(-D(real)).mean()
    if step % D_REG_EVERY == 0:
        d_loss = d_loss + 0.5 * R1_WEIGHT * D_REG_EVERY * r1_penalty(D, real)
    opt_d.zero_grad(set_to_none=True)
    d_loss.backward()
    opt_d.step()

    fake, w = G(torch.randn(BATCH, LATENT))
    g_loss = F.softplus(-D(fake)).mean()
    if step % G_REG_EVERY == 0:
        img, w = G(torch.randn(BATCH, LATENT))
        lengths = path_length(img, w)
        mean_path = mean_path.lerp(lengths.mean().detach(), PATH_DECAY)
        g_loss = g_loss + PATH_WEIGHT * G_REG_EVERY * (lengths - mean_path).pow(2).mean()
    opt_g.zero_grad(set_to_none=True)
    g_loss.backward()
    opt_g.step()

    if step % 20 == 0:
        log["d"].append(d_loss.item())
        log["g"].append(g_loss.item())
        print(f"{step:4d}  D {log['d'][-1]:.3f}  G {log['g'][-1]:.3f}  path {mean_path.item():.3f}")
