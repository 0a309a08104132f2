import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(4)

DIFFUSION = 0.1


class Field(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x, t):
        return self.net(torch.stack([x, t], dim=1)).squeeze(1)


def residual(field, x, t):
    u = field(x, t)
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    return u_t - DIFFUSION * u_xx


inside_x = torch.rand(1800, requires_grad=True)
inside_t = torch.rand(1800, requires_grad=True)
start_x = torch.linspace(0, 1, 120)
edge_t = torch.linspace(0, 1, 120)
start_u = torch.sin(math.pi * start_x)


def objective(field):
    physics = residual(field, inside_x, inside_t).square().mean()
    initial = (field(start_x, torch.zeros_like(start_x)) - start_u).square().mean()
    left = field(torch.zeros_like(edge_t), edge_t).square().mean()
    right = field(torch.ones_like(edge_t), edge_t).square().mean()
    return physics + 10 * (initial + left + right)


field = Field()
trace = []

adam = torch.optim.Adam(field.parameters(), lr=3e-3)
for step in range(150):
    adam.zero_grad()
    loss = objective(field)
    loss.backward()
    adam.step()
    trace.append(loss.item())
    if (step + 1) % 50 == 0:
        print(f"adam  {step + 1:3d}  {trace[-1]:.3e}")

lbfgs = torch.optim.LBFGS(
    field.parameters(), lr=1.0, max_iter=4, history_size=30, line_search_fn="strong_wolfe"
)


def closure():
    lbfgs.zero_grad()
    loss = objective(field)
    loss.backward()
    return loss


for step in range(90):
    loss = lbfgs.step(closure)
    trace.append(loss.item())
    if (step + 1) % 15 == 0:
        print(f"lbfgs {step + 1:3d}  {trace[-1]:.3e}")

with torch.no_grad():
    x, t = torch.rand(2000), torch.rand(2000)
    exact = torch.sin(math.pi * x) * torch.exp(-DIFFUSION * math.pi**2 * t)
    print(f"mean error {(field(x, t) - exact).abs().mean().item():.2e}")
