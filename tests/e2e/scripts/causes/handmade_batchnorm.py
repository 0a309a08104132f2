"""MLP with our own batch normalisation (exercise 3 of the course)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoSpirals(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        t = 0.5 + 2.5 * torch.rand(n, generator=g)
        self.label = torch.arange(n) % 2
        angle = 2 * t + torch.pi * self.label
        xy = torch.stack([t * torch.cos(angle), t * torch.sin(angle)], dim=1)
        self.xy = xy + 0.05 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.xy)

    def __getitem__(self, i):
        return self.xy[i], self.label[i]


class MyBatchNorm(nn.Module):
    def __init__(self, dim, momentum=0.1, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.momentum = momentum
        self.eps = eps

    def forward(self, x):
        if self.training:
            n = x.size(0)
            mean = x.sum(dim=0) / n
            var = ((x - mean) ** 2).sum(dim=0) / (n - 1)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var, self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        x_hat = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * x_hat + self.beta


class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.fc1 = nn.Linear(2, width)
        self.bn1 = MyBatchNorm(width)
        self.fc2 = nn.Linear(width, width)
        self.bn2 = MyBatchNorm(width)
        self.fc3 = nn.Linear(width, 2)

    def forward(self, x):
        x = torch.relu(self.bn1(self.fc1(x)))
        x = torch.relu(self.bn2(self.fc2(x)))
        return self.fc3(x)


def main():
    torch.manual_seed(5)
    dataset = TwoSpirals(193)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    iteration = 0
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            if iteration % 4 == 0:
                print(f"epoch {epoch} iteration {iteration} loss {loss.item():.4f}")
            iteration += 1

    net.eval()
    with torch.no_grad():
        acc = (net(dataset.xy).argmax(1) == dataset.label).float().mean()
    print(f"accuracy {acc.item():.3f}")


if __name__ == "__main__":
    main()
