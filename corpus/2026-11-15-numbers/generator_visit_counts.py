import numpy as np
import torch
from torch import nn


def load_visits(n=600, seed=7):
    rng = np.random.default_rng(seed)
    age = rng.normal(45, 15, n).clip(18, 90)
    income = rng.lognormal(3.0, 0.5, n)
    distance = rng.gamma(2.0, 1.5, n)
    mislogged = rng.random(n) < 0.004
    income = np.where(mislogged, income * 12_000.0, income)
    rate = np.exp(0.4 + 0.01 * (age - 45) - 0.1 * distance)
    visits = rng.poisson(rate)
    features = np.column_stack([(age - 45) / 15, income / 20, distance / 3]).astype(np.float32)
    return features, visits.astype(np.float32)


def minibatches(features, visits, batch_size, epochs, seed=0):
    rng = np.random.default_rng(seed)
    for epoch in range(epochs):
        order = rng.permutation(len(visits))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            yield epoch, torch.from_numpy(features[rows]), torch.from_numpy(visits[rows])


class RateModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.bump = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        eta = self.linear(x) + self.bump(x)
        return torch.exp(eta).squeeze(1)


def poisson_deviance(rate, count):
    return (rate - count * torch.log(rate + 1e-8)).mean()


def fit():
    torch.manual_seed(4)
    features, visits = load_visits()
    model = RateModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    smooth = None
    stream = minibatches(features, visits, batch_size=20, epochs=2)
    for step, (epoch, x, count) in enumerate(stream):
        rate = model(x)
        loss = poisson_deviance(rate, count)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} deviance {smooth:.4f}")


fit()
