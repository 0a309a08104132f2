"""Flower petals counted from images, one-cycle learning rate policy."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    def __init__(self, count, size=24):
        self.count = count
        axis = torch.linspace(-1, 1, size)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        self.angle = torch.atan2(yy, xx)
        self.radius = (xx**2 + yy**2).sqrt()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        petals = index % 4
        turn = torch.rand(1, generator=gen) * 6.28
        edge = 0.5 + 0.3 * torch.cos((petals + 3) * self.angle + turn)
        image = (self.radius < edge).float()
        return image.unsqueeze(0) + 0.1 * torch.randn(1, 24, 24, generator=gen), petals


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(24 * 16, 4),
    )


def train(args):
    dataset = Flowers(args.samples)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps_per_epoch = len(dataset) // args.batch_size
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.max_lr, epochs=args.epochs, steps_per_epoch=steps_per_epoch
    )
    for epoch in range(args.epochs):
        hits = 0
        for images, petals in loader:
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, petals)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            hits += (logits.argmax(1) == petals).sum().item()
        lr = scheduler.get_last_lr()[0]
        print(f"epoch {epoch}: accuracy {hits / len(dataset):.3f} lr {lr:.4f}")
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--max-lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(100)
    train(args)


if __name__ == "__main__":
    main()
