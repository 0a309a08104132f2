"""Small CNN that tells leaf species apart from synthetic leaf silhouettes."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    image_size: int = 40
    species: int = 5
    samples: int = 640
    batch_size: int = 32
    epochs: int = 3
    lr: float = 1e-3
    seed: int = 11


class Leaves(Dataset):
    """Ellipses of different elongation, with a bit of noise on each channel."""

    def __init__(self, cfg, offset=0):
        self.cfg = cfg
        self.offset = offset
        axis = torch.linspace(-1.0, 1.0, cfg.image_size)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.cfg.samples

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(self.offset + index)
        label = index % self.cfg.species
        stretch = 0.3 + 0.15 * label
        mask = (self.xx / stretch) ** 2 + (self.yy / 0.8) ** 2 < 1.0
        image = mask.float().expand(3, -1, -1) + 0.3 * torch.randn(
            3, self.cfg.image_size, self.cfg.image_size, generator=gen
        )
        return image, label


class LeafNet(nn.Module):
    def __init__(self, species):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 10 * 10, 64)
        self.fc2 = nn.Linear(64, species)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = x.flatten(1)
        x = torch.relu(self.fc1(x))
        return self.fc2(x)


def run_epoch(model, loader, criterion, optimizer):
    model.train()
    total, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        optimizer.zero_grad()
        logits = model(images)
        loss = criterion(logits, labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        correct += (logits.argmax(1) == labels).sum().item()
        seen += len(labels)
    return total / seen, correct / seen


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    loader = DataLoader(Leaves(cfg), batch_size=cfg.batch_size, shuffle=True)
    model = LeafNet(cfg.species)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    criterion = nn.CrossEntropyLoss()
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    for epoch in range(cfg.epochs):
        loss, acc = run_epoch(model, loader, criterion, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f} accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
