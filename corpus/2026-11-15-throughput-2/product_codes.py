import math

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(9)


class GumbelCodebook(nn.Module):
    def __init__(self, dim, codes, groups):
        super().__init__()
        self.groups, self.codes = groups, codes
        self.epoch = 0
        self.logits = nn.Linear(dim, groups * codes)
        self.table = nn.Parameter(torch.randn(groups, codes, dim // groups) * 0.2)

    def forward(self, z):
        logits = self.logits(z).view(-1, self.groups, self.codes)
        tau = max(0.4, math.exp(-0.06 * self.epoch))
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)))
        soft = F.softmax((logits + noise) / tau, dim=-1)
        return torch.einsum("bgc,gcd->bgd", soft, self.table).flatten(1)


class ProductCodeAE(nn.Module):
    def __init__(self, features=128, dim=64):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(features, 320), nn.ReLU(), nn.Linear(320, dim))
        self.codebook = GumbelCodebook(dim, codes=32, groups=8)
        self.decode = nn.Sequential(nn.Linear(dim, 320), nn.ReLU(), nn.Linear(320, features))

    def forward(self, x):
        recon = self.decode(self.codebook(self.encode(x)))
        return F.mse_loss(recon, x)


factors = torch.randn(2048, 10)
items = torch.tanh(factors @ torch.randn(10, 128) * 0.5) + 0.05 * torch.randn(2048, 128)

model = ProductCodeAE()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(20):
    model.codebook.epoch = epoch
    total = 0.0
    batches = torch.randperm(len(items)).split(256)
    for index in batches:
        loss = compiled(items[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch % 4 == 3:
        print(f"epoch {epoch + 1}: reconstruction {total / len(batches):.4f}")
