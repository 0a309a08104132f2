"""Progressively grown WGAN-GP on procedural textures, 8 -> 16 -> 32 pixels."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)

Z, CH, N_CRITIC, GP_WEIGHT = 24, 10, 2, 5.0
STAGES = [  # resolution, batch size, generator updates
    (8, 10, 34),
    (16, 8, 34),
    (32, 5, 34),
]


def textures(n, res):
    y, x = torch.meshgrid(torch.linspace(0, 6.28, res), torch.linspace(0, 6.28, res), indexing="ij")
    fx, fy, ph = torch.rand(3, n, 1, 1) * torch.tensor([2.0, 2.0, 6.28])[:, None, None, None]
    wave = torch.sin(fx * x + fy * y + ph)
    return torch.stack([wave, wave * 0.5, -wave], dim=1)


def up(t):
    return F.interpolate(t, scale_factor=2.0, mode="nearest")


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(Z, CH * 16)
        self.blocks = nn.ModuleList()
        self.to_rgb = nn.ModuleList()

    def grow(self):
        self.blocks.append(nn.Sequential(nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2)))
        self.to_rgb.append(nn.Conv2d(CH, 3, 1))
        return [*self.blocks[-1].parameters(), *self.to_rgb[-1].parameters()]

    def forward(self, z, alpha):
        h = F.leaky_relu(self.start(z), 0.2).view(-1, CH, 4, 4)
        for block in self.blocks:
            prev, h = h, block(up(h))
        img = self.to_rgb[-1](h)
        if alpha < 1 and len(self.blocks) > 1:
            img = alpha * img + (1 - alpha) * up(self.to_rgb[-2](prev))
        return torch.tanh(img)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList()
        self.from_rgb = nn.ModuleList()
        self.score = nn.Linear(CH * 16, 1)

    def grow(self):
        self.blocks.append(nn.Sequential(nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)))
        self.from_rgb.append(nn.Conv2d(3, CH, 1))
        return [*self.blocks[-1].parameters(), *self.from_rgb[-1].parameters()]

    def forward(self, img, alpha):
        h = self.blocks[-1](F.leaky_relu(self.from_rgb[-1](img), 0.2))
        if alpha < 1 and len(self.blocks) > 1:
            h = alpha * h + (1 - alpha) * F.leaky_relu(self.from_rgb[-2](F.avg_pool2d(img, 2)), 0.2)
        for block in reversed(list(self.blocks)[:-1]):
            h = block(h)
        return self.score(h.flatten(1)).squeeze(1)


def gradient_penalty(critic, real, fake, alpha):
    mix = torch.rand(len(real), 1, 1, 1)
    point = (mix * real + (1 - mix) * fake).requires_grad_()
    slope, = torch.autograd.grad(critic(point, alpha).sum(), point, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).pow(2).mean()


gen, critic = Generator(), Critic()
opt_g = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.0, 0.99))
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.99))

for res, batch, updates in STAGES:
    opt_g.add_param_group({"params": gen.grow()})
    opt_c.add_param_group({"params": critic.grow()})
    for k in range(updates):
        alpha = min(1.0, (k + 1) / (updates * 0.5))
        for _ in range(N_CRITIC):
            real = textures(batch, res)
            with torch.no_grad():
                fake = gen(torch.randn(batch, Z), alpha)
            on_real, on_fake = critic(real, alpha), critic(fake, alpha)
            gap = on_fake.mean() - on_real.mean()
            loss_c = gap + GP_WEIGHT * gradient_penalty(critic, real, fake, alpha) + 1e-3 * on_real.pow(2).mean()
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        loss_g = -critic(gen(torch.randn(batch, Z), alpha), alpha).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        if (k + 1) % 8 == 0:
            print(f"{res:2d}px update {k + 1:3d} fade {alpha:.2f} critic {loss_c.item():+.3f} "
                  f"distance {-gap.item():+.3f} gen {loss_g.item():+.3f}")
