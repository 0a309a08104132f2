"""A trainer keeps the outputs of every step in a dictionary of lists."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


class Trainer:
    def __init__(self):
        self.model = make_model()
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.history = {"loss": [], "out": []}

    def training_step(self, batch):
        x, y = batch
        out = self.model(x)
        self.history["out"].append(out)
        return nn.functional.mse_loss(out, y)

    def fit(self, loader):
        for _ in range(2):
            for batch in loader:
                loss = self.training_step(batch)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.history["loss"].append(loss.item())


Trainer().fit(DataLoader(TensorDataset(X, Y), batch_size=32))
