"""Poisson deviance y*log(y/mu) is NaN in months with a zero count; LBFGS takes the step anyway.

Kind of report: "LBFGS gives nan after a few iterations", where the objective itself is undefined
for part of the data.
"""
# expect: NUM001
# poisoned-steps: [9, 22]
# category: NUM001

import torch
from torch import nn, optim

torch.manual_seed(42)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

MONTHS, STATIONS, FEATURES = 34, 400, 8

covariates = torch.randn(MONTHS, STATIONS, FEATURES)
effect = 0.3 * torch.randn(FEATURES)
rate = torch.exp(3.0 + covariates @ effect)
counts = torch.poisson(rate).clamp(min=1)
counts[9, 31] = 0  # station closed
counts[22, 200] = 0
counts[22, 201] = 0

model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
nn.init.constant_(model[2].bias, 3.0)
optimizer = optim.LBFGS(
    model.parameters(), lr=0.5, max_iter=6, history_size=5, line_search_fn="strong_wolfe"
)


def deviance(y, mu):
    return 2 * (y * torch.log(y / mu) - (y - mu)).mean()


for month in range(MONTHS):
    x, y = covariates[month], counts[month]

    def closure(x=x, y=y):
        optimizer.zero_grad()
        mu = torch.exp(model(x).squeeze(-1))
        loss = deviance(y, mu) + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    if month % 6 == 0:
        print(f"month {month:2d} deviance {loss.item():.4f}")

print(f"final loss {loss.item():.4f}")
