import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

ACCUMULATE = 4


def make_utterances(n=720, frames=16, dim=6, speakers=5):
    g = torch.Generator().manual_seed(40)
    who = torch.randint(0, speakers, (n,), generator=g)
    voice = torch.randn(speakers, 1, dim, generator=g)
    x = voice[who] + 0.5 * torch.randn(n, frames, dim, generator=g)
    voiced = torch.randint(0, 400, (n,), generator=g)
    x = x * (voiced > 0).float().view(-1, 1, 1)
    return TensorDataset(x, who)


class StatsPooling(nn.Module):
    def forward(self, h):
        mean = h.mean(dim=1, keepdim=True)
        var = (h - mean).square().mean(dim=1)
        return torch.cat([mean.squeeze(1), torch.sqrt(var)], dim=1)


class XVector(nn.Module):
    def __init__(self, dim=6, hidden=16, speakers=5):
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh())
        self.pool = StatsPooling()
        self.segment = nn.Sequential(nn.Linear(2 * hidden, 24), nn.ReLU(), nn.Linear(24, speakers))

    def forward(self, x):
        return self.segment(self.pool(self.frame(x)))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = [(model(x).argmax(1) == y).float().mean() for x, y in loader]
    model.train()
    return torch.stack(hits).mean().item()


def main():
    torch.manual_seed(27)
    data = make_utterances()
    train = DataLoader(Subset(data, range(80, 720)), batch_size=4, shuffle=True)
    dev = DataLoader(Subset(data, range(80)), batch_size=40)
    model = XVector()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    updates, running = 0, 0.0
    for i, (x, who) in enumerate(train):
        loss = F.cross_entropy(model(x), who) / ACCUMULATE
        loss.backward()
        running += loss.item()
        if (i + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            if updates % 5 == 0:
                acc = accuracy(model, dev)
                print(f"update {updates} loss {running / 5:.4f} dev accuracy {acc:.3f}")
                running = 0.0


if __name__ == "__main__":
    main()
