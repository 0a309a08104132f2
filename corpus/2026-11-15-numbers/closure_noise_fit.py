import math

import torch
from torch import nn


class GrowthCurve(nn.Module):
    def __init__(self):
        super().__init__()
        self.capacity = nn.Parameter(torch.tensor(9.98))
        self.rate = nn.Parameter(torch.tensor(1.01))
        self.midpoint = nn.Parameter(torch.tensor(5.01))
        self.noise = nn.Parameter(torch.tensor(1.0))

    def forward(self, t):
        return self.capacity * torch.sigmoid(self.rate * (t - self.midpoint))

    def nll(self, t, y):
        z = (y - self(t)) / self.noise
        log_norm = torch.log(self.noise) + 0.5 * math.log(2 * math.pi)
        return (0.5 * z**2 + log_norm).mean()


def observations(n=120):
    g = torch.Generator().manual_seed(3)
    t = torch.linspace(0, 10, n)
    y = 10.0 / (1 + torch.exp(-1.0 * (t - 5.0)))
    return t, y + 0.02 * torch.randn(n, generator=g)


class Fitter:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(
            [
                {"params": [model.capacity, model.rate, model.midpoint], "lr": 0.01 * lr},
                {"params": [model.noise], "lr": lr},
            ]
        )
        self.evaluations = 0

    def closure_for(self, t, y):
        def closure():
            self.optimizer.zero_grad()
            loss = self.model.nll(t, y)
            loss.backward()
            self.evaluations += 1
            return loss

        return closure

    def run(self, t, y, iterations):
        closure = self.closure_for(t, y)
        for i in range(iterations):
            loss = self.optimizer.step(closure)
            if i % 10 == 0:
                print(f"{i:3d} nll {loss.item():.4f} noise {self.model.noise.item():.4f}")


def main():
    torch.manual_seed(0)
    t, y = observations()
    fitter = Fitter(GrowthCurve(), lr=0.12)
    fitter.run(t, y, iterations=50)
    print("function evaluations:", fitter.evaluations)


if __name__ == "__main__":
    main()
