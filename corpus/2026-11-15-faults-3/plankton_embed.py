"""Classify plankton crops with a small convnet and inspect the embedding layer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class ActivationProbe:
    def __init__(self, module, name):
        self.name = name
        self.outputs = []
        self.handle = module.register_forward_hook(self._record)

    def _record(self, module, args, output):
        self.outputs.append(output.detach().clone())

    def sparsity(self):
        last = self.outputs[-1]
        return (last <= 0).float().mean().item()


class PlanktonNet(nn.Module):
    def __init__(self, n_species=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(24 * 16, n_species)

    def forward(self, x):
        x = self.pool(self.body(self.stem(x)))
        return self.head(x.flatten(1))


def crops(n=1200, size=40, n_species=6):
    gen = torch.Generator().manual_seed(8)
    labels = torch.randint(0, n_species, (n,), generator=gen)
    grid = torch.linspace(0, 6.28, size)
    waves = torch.sin(grid[None] * (labels[:, None] + 1).float())
    images = waves[:, None, :, None] * waves[:, None, None, :]
    return images + 0.4 * torch.randn(images.shape, generator=gen), labels


def run_epoch(net, loader, criterion, opt, probe):
    seen, correct, total = 0, 0, 0.0
    for x, y in loader:
        out = net(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(y)
        total += loss.item() * len(y)
        correct += (out.argmax(1) == y).sum().item()
    return total / seen, correct / seen, probe.sparsity()


def main():
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(*crops()), batch_size=32, shuffle=True)
    net = PlanktonNet()
    probe = ActivationProbe(net.body, "body")
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(8):
        loss, acc, sparse = run_epoch(net, loader, criterion, opt, probe)
        print(f"epoch {epoch}: loss {loss:.3f} acc {acc:.3f} {probe.name} sparsity {sparse:.2f}")


main()
