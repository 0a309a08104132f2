import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(13)

N_FEATURES = 24
BATCH = 160


class NonNegative(nn.Module):
    def forward(self, weight):
        return weight.abs()


class RiskNet(nn.Module):
    """Default risk that may only rise with every (already oriented) feature."""

    def __init__(self, width=512):
        super().__init__()
        self.inp = nn.Linear(N_FEATURES, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        for layer in (self.inp, self.mid, self.out):
            nn.init.normal_(layer.weight, std=0.4 / layer.in_features**0.5)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = torch.tanh(self.mid(h) / 8)
        return self.out(h).squeeze(-1)


def constrain(net):
    for module in net.modules():
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", NonNegative())


def loan_book(n=6000):
    x = torch.randn(n, N_FEATURES)
    slope = torch.rand(N_FEATURES)
    score = x @ slope + 0.5 * torch.relu(x[:, 0] + x[:, 1]) - 1.0
    y = torch.bernoulli(torch.sigmoid(1.5 * score))
    return x, y


def epochs(x, y, n_epochs, per_epoch):
    for epoch in range(n_epochs):
        order = torch.randperm(len(x))[: per_epoch * BATCH].split(BATCH)
        yield epoch, ((x[i], y[i]) for i in order)


def run_epoch(net, optimizer, batches):
    constrain(net)
    net.train()
    total, seen = 0.0, 0
    for features, default in batches:
        logit = net(features)
        loss = F.binary_cross_entropy_with_logits(logit, default)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(default)
        seen += len(default)
    return total / seen


if __name__ == "__main__":
    x, y = loan_book()
    net = RiskNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    for epoch, batches in epochs(x, y, n_epochs=46, per_epoch=6):
        mean_loss = run_epoch(net, optimizer, batches)
        if epoch % 8 == 0:
            print(f"epoch {epoch:3d} loss {mean_loss:.4f}")
