import torch
from torch import nn


class EnergyNorm(nn.Module):
    def __init__(self, bands, gain=0.3):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(bands))
        self.gain = gain

    def forward(self, x):
        energy = x.square()
        energy.mul_(self.gain).add_(1.0)
        energy.log_()
        return energy + self.offset


class NoiseGate(nn.Module):
    def __init__(self, bands, open_bias=0.5):
        super().__init__()
        self.mix = nn.Linear(bands, bands)
        nn.init.constant_(self.mix.bias, open_bias)

    def forward(self, x):
        level = self.mix(x)
        level.clamp_(min=0.0)
        level.div_(level.sum(dim=-1, keepdim=True))
        return x * level


class SpectralBlock(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.steps = nn.ModuleDict({"norm": EnergyNorm(bands), "gate": NoiseGate(bands)})
        self.mlp = nn.Sequential(nn.Linear(bands, bands), nn.ReLU())

    def forward(self, x):
        h = self.steps["norm"](x)
        h = self.steps["gate"](h)
        return x + self.mlp(h)


class SpectralNet(nn.Module):
    def __init__(self, bands=6, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(SpectralBlock(bands) for _ in range(depth))
        self.out = nn.Linear(bands, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x).squeeze(-1)


def make_spectra(n=512, bands=6):
    g = torch.Generator().manual_seed(27)
    x = torch.randn(n, bands, generator=g)
    x = x * torch.exp(0.6 * torch.randn(n, 1, generator=g))
    y = x.abs().mean(dim=1) + 0.2 * x[:, 0]
    return x, y


def main():
    torch.manual_seed(24)
    x, y = make_spectra()
    model = SpectralNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.12)
    order = torch.randperm(len(x)).view(-1, 16)
    for step in range(48):
        rows = order[step % len(order)]
        pred = model(x[rows])
        loss = (pred - y[rows]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step:2d} mae {loss.item():.4f}")


if __name__ == "__main__":
    main()
