"""Viscous Burgers equation: Adam to get going, then L-BFGS to polish."""

import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(31)
torch.set_default_dtype(torch.float64)

NU = 0.05


def mlp(width=100, depth=4):
    layers, last = [], 2
    for _ in range(depth):
        layers += [nn.Linear(last, width), nn.Tanh()]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, 1))


def derivative(u, wrt):
    return torch.autograd.grad(u.sum(), wrt, create_graph=True)[0]


def physics(net, t, x):
    u = net(torch.cat([t, x], 1))
    u_x = derivative(u, x)
    return derivative(u, t) + u * u_x - NU * derivative(u_x, x)


def make_points(n_inside, n_edge):
    t = torch.rand(n_inside, 1).requires_grad_(True)
    x = (2 * torch.rand(n_inside, 1) - 1).requires_grad_(True)
    x0 = 2 * torch.rand(n_edge, 1) - 1
    start = torch.cat([torch.zeros_like(x0), x0], 1)
    tb = torch.rand(n_edge, 1)
    side = torch.where(torch.rand(n_edge, 1) < 0.5, -1.0, 1.0)
    return t, x, start, -torch.sin(math.pi * x0), torch.cat([tb, side], 1)


def objective(net, points):
    t, x, start, u_start, wall = points
    inside = physics(net, t, x).square().mean()
    initial = (net(start) - u_start).square().mean()
    return inside + 5 * initial + 5 * net(wall).square().mean()


net = mlp()
points = make_points(256, 64)
trace = []

adam = torch.optim.Adam(net.parameters(), lr=2e-3)
for i in range(80):
    loss = objective(net, points)
    adam.zero_grad()
    loss.backward()
    adam.step()
    trace.append(loss.item())
print(f"adam     {trace[0]:.4f} -> {trace[-1]:.4f}")
del adam

lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.8, max_iter=2, history_size=60)


def closure():
    lbfgs.zero_grad()
    value = objective(net, points)
    value.backward()
    return value


for i in range(110):
    trace.append(lbfgs.step(closure).item())
    if i % 22 == 21:
        pairs = len(lbfgs.state[next(net.parameters())]["old_dirs"])
        print(f"lbfgs {i + 1:3d} {trace[-1]:.5f} ({pairs} curvature pairs)")
