"""Physics-informed network for a 2-D reaction-diffusion field: Adam first, then L-BFGS to polish."""
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(21)

DIFF, REACT = 0.4, 1.5
N_INNER, N_EDGE = 400, 120


def exact(xy):
    x, y = xy[:, :1], xy[:, 1:]
    return torch.sin(torch.pi * x) * torch.cos(0.5 * torch.pi * y) + 0.3 * x * y


def source(xy):
    # -D * laplace(u) + k * u for the manufactured solution above
    x, y = xy[:, :1], xy[:, 1:]
    wave = torch.sin(torch.pi * x) * torch.cos(0.5 * torch.pi * y)
    return DIFF * 1.25 * torch.pi ** 2 * wave + REACT * (wave + 0.3 * x * y)


class Field(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        dims = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.scale = nn.Parameter(torch.ones(depth))
        self.out = nn.Linear(width, 1)
        for layer in self.hidden:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, xy):
        h = xy
        for a, layer in zip(self.scale, self.hidden):
            h = torch.tanh(a * layer(h))
        return self.out(h)


def residual(net, xy):
    u = net(xy)
    (du,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
    (dxx,) = torch.autograd.grad(du[:, 0].sum(), xy, create_graph=True)
    (dyy,) = torch.autograd.grad(du[:, 1].sum(), xy, create_graph=True)
    lap = dxx[:, :1] + dyy[:, 1:]
    return -DIFF * lap + REACT * u - source(xy)


def edge_points(n):
    s = 2 * torch.rand(n, 1) - 1
    side = torch.randint(0, 4, (n, 1))
    one = torch.ones_like(s)
    x = torch.where(side == 0, -one, torch.where(side == 1, one, s))
    y = torch.where(side == 2, -one, torch.where(side == 3, one, s))
    return torch.cat([x, y], 1)


def objective(net, inner, edge):
    pde = residual(net, inner).pow(2).mean()
    bc = (net(edge) - exact(edge)).pow(2).mean()
    return pde + 20.0 * bc


@torch.no_grad()
def relative_error(net):
    line = torch.linspace(-1, 1, 60)
    grid = torch.cartesian_prod(line, line)
    ref = exact(grid)
    return (torch.linalg.norm(net(grid) - ref) / torch.linalg.norm(ref)).item()


net = Field()
curve = []
t0 = time.time()

adam = torch.optim.Adam(net.parameters(), lr=2e-3)
for it in range(1, 181):
    inner = (2 * torch.rand(N_INNER, 2) - 1).requires_grad_()
    loss = objective(net, inner, edge_points(N_EDGE))
    adam.zero_grad()
    loss.backward()
    adam.step()
    curve.append(loss.item())
    if it % 60 == 0:
        print(f"adam  {it:4d}  loss {curve[-1]:.4e}  rel. error {relative_error(net):.4f}  {time.time() - t0:.1f}s")

# fixed collocation set for the quasi-Newton phase
inner = (2 * torch.rand(N_INNER, 2) - 1).requires_grad_()
edge = edge_points(N_EDGE)
lbfgs = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=60,
                          tolerance_change=0.0, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = objective(net, inner, edge)
    loss.backward()
    return loss


for it in range(1, 51):
    loss = lbfgs.step(closure)
    curve.append(loss.item())
    if it % 10 == 0:
        print(f"lbfgs {it:4d}  loss {curve[-1]:.4e}  rel. error {relative_error(net):.4f}  {time.time() - t0:.1f}s")

print(f"loss went from {curve[0]:.3f} to {curve[-1]:.2e}")
