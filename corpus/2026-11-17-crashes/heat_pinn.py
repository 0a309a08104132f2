"""Physics-informed network for the one-dimensional heat equation u_t = alpha * u_xx."""
import math

import torch
from torch import nn

ALPHA = 0.1


class HeatNet(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def derivative(output, variable):
    return torch.autograd.grad(
        output, variable, grad_outputs=torch.ones_like(output), create_graph=True
    )[0]


def residual(model, x, t):
    x = x.clone().requires_grad_(True)
    t = t.clone().requires_grad_(True)
    u = model(x, t)
    u_t = derivative(u, t)
    u_x = derivative(u, x)
    u_xx = derivative(u_x, x)
    return u_t - ALPHA * u_xx


def exact(x, t):
    return torch.exp(-ALPHA * math.pi**2 * t) * torch.sin(math.pi * x)


def collocation(count):
    return torch.rand(count, 1), torch.rand(count, 1)


def boundary_loss(model, count=64):
    t = torch.rand(count, 1)
    x = torch.rand(count, 1)
    left = model(torch.zeros_like(t), t)
    right = model(torch.ones_like(t), t)
    start = model(x, torch.zeros_like(x)) - torch.sin(math.pi * x)
    return (left**2).mean() + (right**2).mean() + (start**2).mean()


def report(model, step):
    model.eval()
    grid = torch.linspace(0, 1, 41)
    x, t = (g.reshape(-1, 1) for g in torch.meshgrid(grid, grid, indexing="ij"))
    with torch.no_grad():
        error = (model(x, t) - exact(x, t)).abs().max().item()
        physics = residual(model, x, t).pow(2).mean().item()
    print(f"step {step}: max error {error:.4f}, mean squared residual {physics:.5f}")
    model.train()


def main():
    torch.manual_seed(6)
    model = HeatNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    for step in range(1, 601):
        optimizer.zero_grad()
        loss = residual(model, *collocation(256)).pow(2).mean() + boundary_loss(model)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            report(model, step)


if __name__ == "__main__":
    main()
