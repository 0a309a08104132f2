import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BandMixer(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.mix = nn.Linear(bands, bands, bias=False)

    def forward(self, x):
        return x + 0.5 * torch.tanh(self.mix(x))


class EnergyNorm(nn.Module):
    def __init__(self, bands, gain=0.3):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(bands))
        self.gain = gain

    def forward(self, x):
        energy = x.square()
        energy.div_(energy.mean(dim=-1, keepdim=True))
        energy.mul_(self.gain).add_(1.0).log_()
        return energy + self.offset


class SpectralBlock(nn.Module):
    def __init__(self, bands, normalise):
        super().__init__()
        steps = {"mixer": BandMixer(bands)}
        if normalise:
            steps["norm"] = EnergyNorm(bands)
        self.steps = nn.ModuleDict(steps)

    def forward(self, x):
        for step in self.steps.values():
            x = step(x)
        return x


class SpectralNet(nn.Module):
    def __init__(self, bands=6, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(
            SpectralBlock(bands, normalise=i == depth - 1) for i in range(depth)
        )
        self.out = nn.Sequential(nn.Linear(bands, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x).squeeze(-1)


def make_spectra(n=512, bands=6):
    g = torch.Generator().manual_seed(27)
    x = torch.randn(n, bands, generator=g)
    level = torch.exp(0.6 * torch.randn(n, 1, generator=g))
    x = x * torch.where(level < 0.16, torch.zeros(()), level)
    y = x.abs().amax(dim=1) - x.abs().mean(dim=1) + 0.2 * x[:, 0]
    return TensorDataset(x, y)


def main():
    torch.manual_seed(25)
    loader = DataLoader(make_spectra(), batch_size=12, shuffle=True)
    model = SpectralNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        pred = model(x)
        loss = (pred - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step:2d} mae {loss.item():.4f}")


if __name__ == "__main__":
    main()
