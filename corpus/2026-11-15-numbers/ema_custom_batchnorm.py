"""Hand-written batch norm gets a last batch of one sample: its running variance becomes NaN.

Kind of report: "model is nan in eval but trains fine", traced to an incomplete last batch. The
layer normalises with the biased variance (fine for one sample) and tracks the unbiased one (0/0).
An averaged copy of the model inherits the bad statistic.
"""
# expect: NUM004
# poisoned-steps: [24, 49, 74]
# category: NUM004

import copy
import warnings

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*degrees of freedom.*")


class MyBatchNorm(nn.Module):
    def __init__(self, dim, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            var = x.var(0, unbiased=False)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(x.var(0), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta


class EMA:
    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.module = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.mul_(self.decay).add_(theirs, alpha=1 - self.decay)
        for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    x = torch.randn(24 * 50 + 1, 40)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)  # 24 full and 1 of one

    model = nn.Sequential(
        nn.Linear(40, 200), MyBatchNorm(200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
        nn.Linear(200, 2),
    )  # fmt: skip
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    for epoch in range(3):
        total = 0.0
        for xb, yb in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            opt.step()
            ema.update(model)
            total += loss.item() * len(xb)
        with torch.no_grad():
            averaged = nn.functional.cross_entropy(ema.module(x), y).item()
        print(f"epoch {epoch} train {total / len(x):.4f} averaged model {averaged:.4f}")
    print(f"final loss {total / len(x):.4f}")


main()
