# Physics-informed network for the viscous Burgers equation
#   u_t + u u_x = nu u_xx,  u(x, 0) = -sin(pi x),  u(-1, t) = u(1, t) = 0
# Adam on resampled collocation points first, then L-BFGS on a fixed set.
import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(2)

NU = 0.02
ADAM_STEPS, LBFGS_STEPS = 150, 24


class Field(nn.Module):
    def __init__(self, width=28, depth=4):
        super().__init__()
        dims = [2] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(dims[:-1], dims[1:]))
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, t):
        h = torch.cat([x, 2 * t - 1], dim=1)
        for layer in self.layers[:-1]:
            h = torch.tanh(layer(h))
        # boundary values are built in
        return (1 - x ** 2) * self.layers[-1](h)


def derivative(u, v):
    return torch.autograd.grad(u, v, torch.ones_like(u), create_graph=True)[0]


def residual(net, x, t):
    x, t = x.requires_grad_(), t.requires_grad_()
    u = net(x, t)
    u_x, u_t = derivative(u, x), derivative(u, t)
    u_xx = derivative(u_x, x)
    return u_t + u * u_x - NU * u_xx


def collocation(n):
    return 2 * torch.rand(n, 1) - 1, torch.rand(n, 1)


x0 = torch.linspace(-1, 1, 101).unsqueeze(1)
u0 = -torch.sin(math.pi * x0)
net = Field()


def objective(x, t):
    pde = residual(net, x, t).pow(2).mean()
    start = (net(x0, torch.zeros_like(x0)) - u0).pow(2).mean()
    return pde + 10 * start, pde, start


curve = []
adam = torch.optim.Adam(net.parameters(), lr=4e-3)
for step in range(ADAM_STEPS):
    loss, pde, start = objective(*collocation(400))
    adam.zero_grad()
    loss.backward()
    adam.step()
    curve.append(loss.item())
    if (step + 1) % 30 == 0:
        print(f"adam  {step + 1:4d} loss {loss.item():.5f} pde {pde.item():.5f} start {start.item():.6f}")

fixed = collocation(600)
lbfgs = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=8, history_size=30, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    lbfgs.zero_grad()
    loss, _, _ = objective(*(v.detach() for v in fixed))
    loss.backward()
    return loss


for step in range(LBFGS_STEPS):
    loss = lbfgs.step(closure)
    curve.append(loss.item())
    if (step + 1) % 6 == 0:
        print(f"lbfgs {step + 1:4d} loss {loss.item():.6f} closure calls {calls}")

with torch.no_grad():
    x = torch.linspace(-1, 1, 9).unsqueeze(1)
    print("u(x, 0.5):", [round(v, 3) for v in net(x, torch.full_like(x, 0.5)).squeeze(1).tolist()])
print(f"loss {curve[0]:.4f} -> {curve[-1]:.6f} in {len(curve)} updates")
