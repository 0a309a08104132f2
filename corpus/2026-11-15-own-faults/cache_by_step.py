"""A cache whose keys never come again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = make_model()
        self._cache = {}

    def forward(self, x, key):
        if key not in self._cache:
            self._cache[key] = x.detach().repeat(40, 1)
        return self.body(x)


model = Net()
opt = torch.optim.SGD(model.parameters(), 1e-2)
loader = DataLoader(TensorDataset(X[:320], Y[:320]), batch_size=32, shuffle=True)
step = 0
for _epoch in range(12):
    for x, y in loader:
        opt.zero_grad()
        nn.functional.mse_loss(model(x, step), y).backward()
        opt.step()
        step += 1
