"""Batches grow on purpose and a layer joins late."""

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

big = nn.Linear(64, 2048)
opt.add_param_group({"params": big.parameters()})
for i in range(150):
    n = 16 + i * 8
    x = torch.randn(n, 64)
    y = torch.randn(n, 1)
    out = model(x)
    if i > 60:
        out = out + big(x).mean(1, keepdim=True)
    opt.zero_grad()
    nn.functional.mse_loss(out, y).backward()
    opt.step()
