import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


class Price(nn.Module):
    def __init__(self, n_in=8, hidden=20):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h = F.leaky_relu(self.inp(x))
        h = F.leaky_relu(self.mid(h))
        return self.out(h).squeeze(-1)


def houses(n=640):
    g = torch.Generator().manual_seed(31)
    x = torch.randn(n, 8, generator=g)
    w = torch.randn(8, generator=g)
    return TensorDataset(x, x @ w + 0.1 * torch.randn(n, generator=g))


def warmup(step, growth=1.8, hold=400):
    return growth ** min(step, hold)


def validate(model, data):
    model.eval()
    with torch.no_grad():
        x, y = data.tensors
        error = (model(x[:64]) - y[:64]).abs().median().item()
    model.train()
    return error


def main():
    torch.manual_seed(20)
    data = houses()
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = Price()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = LambdaLR(optimizer, warmup)
    for step, (x, y) in enumerate(loader):
        loss = F.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 9:
            lr = scheduler.get_last_lr()[0]
            print(f"step {step} lr {lr:.3g} loss {loss.item():.4g} val {validate(model, data):.4g}")


if __name__ == "__main__":
    main()
