"""A mutable default argument collects losses."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


def record(value, store=[]):  # noqa: B006
    store.append(value)
    return float(store[-1])


def main():
    model = make_model()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for i in range(80):
        x, y = X[i * 8 : (i + 1) * 8], Y[i * 8 : (i + 1) * 8]
        opt.zero_grad()
        loss = (model(x) - y).abs().mean()
        loss.backward()
        opt.step()
        record(loss)


main()
