"""A cache of samples that is full after one epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


class DS(torch.utils.data.Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 320

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = torch.randn(64, 64)
        return self.cache[i][0], torch.zeros(1)


ds = DS()
model = make_model()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for _epoch in range(8):
    for x, y in DataLoader(ds, batch_size=16, shuffle=True):
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
