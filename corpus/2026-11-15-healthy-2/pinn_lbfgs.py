import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
x = torch.linspace(0, 3.1416, 400).unsqueeze(1).requires_grad_(True)
x_b = torch.tensor([[0.0], [3.1416]])
u_b = torch.tensor([[0.0], [0.0]])
source = -4 * torch.sin(2 * x.detach())

optimizer = torch.optim.LBFGS(
    net.parameters(), lr=0.8, max_iter=4, history_size=20, line_search_fn="strong_wolfe"
)
trace = []


def residual():
    u = net(x)
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    d2u = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
    return d2u - source


def closure():
    optimizer.zero_grad()
    loss = residual().pow(2).mean() + 20 * (net(x_b) - u_b).pow(2).mean()
    loss.backward()
    return loss


for outer in range(200):
    loss = optimizer.step(closure)
    trace.append(loss.item())
    if (outer + 1) % 25 == 0:
        with torch.no_grad():
            error = (net(x) - torch.sin(2 * x)).abs().max().item()
        print(f"outer {outer + 1:3d} loss {trace[-1]:.3e} max error {error:.3e}")
