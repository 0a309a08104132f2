"""Keyword spotting on synthetic filterbank features with a small convolutional encoder."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

N_MELS, FRAMES, KEYWORDS = 24, 50, 8
CLIPS, VALID_SHARE = 1801, 200
EPOCHS = 8


def make_clips(n, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(KEYWORDS, (n,), generator=gen)
    prototype = torch.randn(KEYWORDS, N_MELS, 10, generator=gen)
    prototype = F.interpolate(prototype, size=30, mode="linear", align_corners=False)
    clips = 1.2 * torch.randn(n, N_MELS, FRAMES, generator=gen)
    start = torch.randint(0, FRAMES - 30, (n,), generator=gen)
    loud = 0.5 + torch.rand(n, generator=gen)
    for i in range(n):
        s = int(start[i])
        clips[i, :, s:s + 30] += loud[i] * prototype[label[i]]
    return TensorDataset(clips, label)


class EmbeddingNorm(nn.Module):
    """Normalises clip embeddings; keeps running statistics for deployment."""

    def __init__(self, dim, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def forward(self, x):
        if self.training:
            mean = x.mean(dim=0)
            var = (x - mean).pow(2).mean(dim=0)
            with torch.no_grad():
                self.mean.lerp_(mean, self.momentum)
                self.var.lerp_(x.var(dim=0), self.momentum)
        else:
            mean, var = self.mean, self.var
        return (x - mean) / torch.sqrt(var + self.eps) * self.gain + self.shift


class Spotter(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.conv1 = nn.Conv1d(N_MELS, width, 5, padding=2)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2, stride=2)
        self.conv3 = nn.Conv1d(width, 2 * width, 3, padding=1, stride=2)
        self.norm = EmbeddingNorm(2 * width)
        self.out = nn.Linear(2 * width, KEYWORDS)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x)).mean(dim=2)
        return self.out(F.relu(self.norm(x)))


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for clips, label in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(clips), label)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = total = 0
    for clips, label in loader:
        hits += (model(clips).argmax(dim=1) == label).sum().item()
        total += len(label)
    return hits / total


def main():
    torch.manual_seed(17)
    data = make_clips(CLIPS, seed=18)
    train, valid = random_split(data, [CLIPS - VALID_SHARE, VALID_SHARE])
    train_loader = DataLoader(train, batch_size=32, shuffle=True)
    valid_loader = DataLoader(valid, batch_size=100)
    model = Spotter()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for epoch in range(EPOCHS):
        loss = train_epoch(model, train_loader, optimizer)
        print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {validate(model, valid_loader):.3f}")


if __name__ == "__main__":
    main()
