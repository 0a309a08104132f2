"""A class attribute collects losses with their graphs."""

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


class Meter:
    values = []  # noqa: RUF012

    @classmethod
    def add(cls, v):
        cls.values.append(v)


for _epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        Meter.add(loss)
