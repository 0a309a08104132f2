"""Pure premium model for motor claims: Tweedie deviance, linear link (asked by the actuaries)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)

POWER = 1.5


def portfolio(n):
    """Many zeros, some large claims."""
    age = torch.rand(n)
    km = torch.rand(n)
    city = (torch.rand(n) < 0.3).float()
    rate = 0.15 + 0.5 * km + 0.3 * city
    claims = torch.poisson(rate)
    amount = claims * (0.4 + torch.rand(n) * (1.2 - age))
    return torch.stack([age, km, city], dim=1), amount


def fit(model, loader, objective, epochs, lr):
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        for x, y in loader:
            mu = model(x).squeeze(1)
            loss = objective(mu, y).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            if len(losses) % 5 == 1:
                print(f"epoch {epoch} batch {len(losses) - 1:3d} deviance {losses[-1]:.4f}")
    return losses


def build(mean_premium):
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    # start from the portfolio mean so that the first premiums make sense
    nn.init.normal_(model[2].weight, std=0.05)
    nn.init.constant_(model[2].bias, mean_premium)
    return model


x, y = portfolio(768)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = build(y.mean().item())

history = fit(
    model,
    loader,
    objective=lambda mu, y: (
        2 * (mu ** (2 - POWER) / (2 - POWER) - y * mu ** (1 - POWER) / (1 - POWER))
    ),
    epochs=3,
    lr=0.02,
)

print("first / last deviance:", history[0], history[-1])
with torch.no_grad():
    print("mean premium", model(x).mean().item(), "mean claim", y.mean().item())
