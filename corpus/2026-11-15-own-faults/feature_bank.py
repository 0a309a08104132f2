"""A tensor is joined to its former self in every step."""

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

bank = torch.empty(0, 64)
for _epoch in range(3):
    for x, y in loader:
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank = torch.cat([bank, x.repeat(64, 1)])
