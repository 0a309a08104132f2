"""Adversarial training in eval mode uses its graphs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


model = make_model()
opt = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)

for _epoch in range(2):
    for x, y in loader:
        model.eval()
        xa = x.clone().requires_grad_()
        attacked = nn.functional.mse_loss(model(xa), y)
        (g,) = torch.autograd.grad(attacked, xa)
        model.train()
        opt.zero_grad()
        nn.functional.mse_loss(model(xa.detach() + 0.01 * g.sign()), y).backward()
        opt.step()
model.eval()
xs = X[:8].clone().requires_grad_()
model(xs).sum().backward()
print(xs.grad.norm().item())
