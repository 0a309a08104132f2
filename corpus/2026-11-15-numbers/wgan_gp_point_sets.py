import torch
from torch import autograd, nn


class Critic(nn.Module):
    def __init__(self, dim=2, hidden=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(dim, hidden), nn.Softplus())
        self.score = nn.Linear(hidden, 1)

    def forward(self, points, mask):
        h = self.embed(points) * mask.unsqueeze(-1)
        return self.score(h.sum(dim=1)).squeeze(-1)


class Generator(nn.Module):
    def __init__(self, latent=4, n_points=5, dim=2):
        super().__init__()
        self.n_points, self.dim, self.latent = n_points, dim, latent
        self.net = nn.Sequential(nn.Linear(latent, 32), nn.ELU(), nn.Linear(32, n_points * dim))

    def forward(self, n):
        z = torch.randn(n, self.latent)
        return self.net(z).view(n, self.n_points, self.dim)


def make_sets(n=256, n_points=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    angle = 6.2832 * torch.rand(n, n_points, generator=g)
    points = torch.stack([angle.cos(), angle.sin()], dim=-1)
    points = points + 0.05 * torch.randn(points.shape, generator=g)
    mask = (torch.rand(n, n_points, generator=g) < 0.68).float()
    return points * mask.unsqueeze(-1), mask


def gradient_penalty(critic, real, fake, mask):
    eps = torch.rand(real.shape[0], 1, 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = critic(mixed, mask)
    (grads,) = autograd.grad(score.sum(), mixed, create_graph=True)
    slope = grads.pow(2).sum(dim=(1, 2)).sqrt()
    return (slope - 1).pow(2).mean()


def train(critic, generator, points, masks, iterations=40, batch_size=12, gp_weight=5.0):
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    order = torch.randperm(len(points))
    for it in range(iterations):
        start = (it * batch_size) % (len(points) - batch_size)
        rows = order[start : start + batch_size]
        real, mask = points[rows], masks[rows]

        opt_c.zero_grad()
        fake = generator(len(rows)).detach()
        gap = critic(fake, mask).mean() - critic(real, mask).mean()
        loss_c = gap + gp_weight * gradient_penalty(critic, real, fake, mask)
        loss_c.backward()
        opt_c.step()

        opt_g.zero_grad()
        loss_g = -critic(generator(len(rows)), mask).mean()
        loss_g.backward()
        opt_g.step()

        if it % 8 == 0:
            print(f"iter {it} critic {loss_c.item():.4f} generator {loss_g.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(12)
    points, masks = make_sets()
    train(Critic(), Generator(), points, masks)
