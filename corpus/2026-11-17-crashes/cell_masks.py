"""U-Net style segmentation of round cells: crops in training, whole fields in validation."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class SmallUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enc1 = block(1, width)
        self.enc2 = block(width, 2 * width)
        self.mid = block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.dec2 = block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.dec1 = block(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        m = self.mid(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([self.up2(m), e2], dim=1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], dim=1))
        return self.head(d1)


def make_fields(count, size, seed):
    gen = torch.Generator().manual_seed(seed)
    axis = torch.arange(size).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    masks = torch.zeros(count, 1, size, size)
    for i in range(count):
        for _ in range(4):
            cy, cx = (torch.rand(2, generator=gen) * size).tolist()
            radius = 4 + 4 * torch.rand(1, generator=gen).item()
            masks[i, 0][(yy - cy) ** 2 + (xx - cx) ** 2 < radius**2] = 1.0
    images = masks + 0.4 * torch.randn(masks.shape, generator=gen)
    return TensorDataset(images, masks)


def dice(logits, masks):
    pred = (logits > 0).float()
    return 2 * (pred * masks).sum() / (pred.sum() + masks.sum()).clamp(min=1)


def validate(model, loader):
    model.eval()
    scores = []
    with torch.no_grad():
        for images, masks in loader:
            scores.append(dice(model(images), masks).item())
    return sum(scores) / len(scores)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--crop", type=int, default=48)
    parser.add_argument("--field", type=int, default=70)
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    train = DataLoader(make_fields(96, args.crop, 1), batch_size=8, shuffle=True)
    val = DataLoader(make_fields(8, args.field, 2), batch_size=4)
    model = SmallUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        model.train()
        for images, masks in train:
            loss = F.binary_cross_entropy_with_logits(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} last loss {loss.item():.4f} dice {validate(model, val):.3f}")


if __name__ == "__main__":
    main()
